"""Parameters of the methods with their checks, which serve for saved values too."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Self

from stillhash.errors import BadState, InvalidInput
from stillhash.numeric.validation import check_choice, check_integer, check_number

Check = Callable[[Any, str], object]  # refuses a bad value of a parameter, by its name
POSITIVE: Check = partial(check_number, above=0)
NOT_NEGATIVE: Check = partial(check_number, low=0)
COUNT: Check = partial(check_integer, low=0)
AT_LEAST_ONE: Check = partial(check_integer, low=1)
FLAG: Check = partial(check_choice, choices=(True, False))


def one_of(*choices: Any) -> Check:
    return partial(check_choice, choices=choices)


def optional(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


def parameter(default: Any, check: Check) -> Any:
    """Return a dataclass field; `Hasher.check_parameters` runs its check."""
    return field(default=default, metadata={"check": check})


@dataclass(eq=False, repr=False)
class Parameters:
    """The parameters of a method, which are its dataclass fields: as scikit-learn reads and sets them, and as JSON."""

    # Parameters that earlier releases had and saved, each by the value that is left, which is not a parameter any more.
    retired: ClassVar[dict[str, Any]] = {}

    def check_parameters(self) -> None:
        """Refuse parameters that no model can be fitted with."""
        for each in fields(self):
            if check := each.metadata.get("check"):
                check(getattr(self, each.name), each.name)

    def params_to_json(self) -> dict[str, Any]:
        """Return the parameters as JSON can represent them."""
        return self.get_params()

    @classmethod
    def params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that `params_to_json` gave, in this release or an earlier one."""
        for name, left in cls.retired.items():
            if params.get(name, left) != left:
                raise BadState(f"{name}: expected {left!r}, which alone is left of it, got {params[name]!r}")
        return {name: value for name, value in params.items() if name not in cls.retired}

    @classmethod
    def parameters(cls) -> list[str]:
        """Return the names of all parameters, those of the base classes included."""
        return sorted(each.name for each in fields(cls) if each.init)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in self.parameters()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        for name, value in params.items():
            if name not in self.parameters():
                raise InvalidInput(f"{name}: expected one of the parameters {', '.join(self.parameters())}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {each.name: each.default for each in fields(self)}
        params = {n: v for n, v in self.get_params().items() if n == "bits" or v != defaults[n]}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in params.items())})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        tags = {"target_tags": TargetTags(required=False), "input_tags": InputTags()}
        return Tags(estimator_type=None, transformer_tags=TransformerTags(preserves_dtype=[]), **tags)
