"""What this machine offers, found out without torch: a plan must not cost the seconds that loading it takes."""

from __future__ import annotations

import ctypes
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device."""

    name: str
    num_bytes: int
    """Its whole memory."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What plans are held against."""

    gpus: tuple[Gpu, ...]
    """As the CUDA driver lists them; CUDA_VISIBLE_DEVICES counts."""
    ram_bytes: int
    """Whole memory, or the limit of the container."""
    num_cores: int
    free_disk_bytes: int
    """In the current folder."""
    hub_cache: Path
    """Where Hugging Face models are kept."""
    is_offline: bool
    """HF_HUB_OFFLINE forbids downloads."""

    @property
    def device(self) -> str:
        """Where the transformers engine puts the policy: the first CUDA device, or the CPU."""
        return "cuda" if self.gpus else "cpu"

    @property
    def device_name(self) -> str:
        """What to call that device."""
        return self.gpus[0].name if self.gpus else f"CPU, {self.num_cores} cores"

    @property
    def device_bytes(self) -> int:
        """Memory of that device."""
        return self.gpus[0].num_bytes if self.gpus else self.ram_bytes


def read_machine(folder: Path = Path()) -> Machine:
    """Look at the machine; `folder` is where runs would be written."""
    from huggingface_hub import constants

    return Machine(
        gpus=tuple(_read_gpus()),
        ram_bytes=_read_ram(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_disk_bytes=shutil.disk_usage(folder.absolute()).free,
        hub_cache=Path(constants.HF_HUB_CACHE),
        is_offline=bool(constants.HF_HUB_OFFLINE),
    )


def _read_ram() -> int:
    """Return the memory that processes here may use, in bytes."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdecimal() else installed


def _read_gpus() -> list[Gpu]:
    """Ask the CUDA driver for its devices; none without a driver, or if it refuses."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    gpus = []
    for number in range(count.value):
        device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(128)
        if driver.cuDeviceGet(ctypes.byref(device), number) != 0:
            continue
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        gpus.append(Gpu(name.value.decode(), size.value))
    return gpus
