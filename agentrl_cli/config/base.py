"""What all sections of the settings are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0)]


def _none_unsets(value: Any) -> Any:
    """TOML has no null, so the text "none" takes back what a preset set."""
    return None if value == "none" else value


Unsettable = BeforeValidator(_none_unsets)


class Section(BaseModel):
    """Base of all sections. Strict: no text where a number belongs, no true where a count belongs."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
