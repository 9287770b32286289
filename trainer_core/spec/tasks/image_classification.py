"""`task: {type: image_classification}`: one label for an image."""

from typing import ClassVar, Literal

from pydantic import Field

from trainer_core.spec.base import Strict
from trainer_core.spec.tasks.labels import LabelledTask

_PATCH = 16
_USUAL_SIZE = 224


class Augmentation(Strict):
    """How training images are changed, anew in each epoch; validation images never are."""

    random_resized_crop: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Cut out a part of at least this share of the image's area, such as 0.5, and "
        "of a shape between 3:4 and 4:3.",
    )
    horizontal_flip: float = Field(
        0.0, ge=0, le=1, description="Probability that left and right change places."
    )
    color_jitter: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Change brightness, contrast and saturation by up to this share each.",
    )


class ImageClassificationTask(LabelledTask):
    """Classification of images: one label each."""

    without_effect_on_rows: ClassVar[frozenset[str]] = LabelledTask.without_effect_on_rows | {
        "augmentation",
        "freeze_backbone",
    }

    type: Literal["image_classification"]
    augmentation: Augmentation | None = Field(
        None, description="Random changes of the training images. Default: none."
    )
    freeze_backbone: bool = Field(
        False, description="Train the head alone: the model's other weights stay as they are."
    )

    @property
    def row_length(self) -> int:
        """What an image usually is to a model that looks at patches of it."""
        return (_USUAL_SIZE // _PATCH) ** 2 + 1
