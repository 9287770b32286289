"""Random changes of training images: what is drawn for a row comes from its own generator."""

import math
from typing import Any

from trainer_core.spec import Augmentation

_NARROWEST, _WIDEST = 3 / 4, 4 / 3
_TRIES = 10


def augmented(image: Any, wish: Augmentation, random: Any) -> Any:
    """An RGB image, cropped, mirrored and recoloured as the spec wishes."""
    if wish.random_resized_crop is not None:
        image = image.crop(_box(image.size, wish.random_resized_crop, random))
    if wish.horizontal_flip and random.random() < wish.horizontal_flip:
        from PIL import ImageOps  # noqa: PLC0415 - heavy

        image = ImageOps.mirror(image)
    return _recoloured(image, wish.color_jitter, random) if wish.color_jitter else image


def _box(size: tuple[int, int], smallest: float, random: Any) -> tuple[int, int, int, int]:
    """A part of the area between `smallest` and all of it, of a moderate shape.

    As torchvision's RandomResizedCrop: after ten shapes that do not fit, the whole image.
    """
    width, height = size
    for _ in range(_TRIES):
        area = width * height * random.uniform(smallest, 1.0)
        shape = math.exp(random.uniform(math.log(_NARROWEST), math.log(_WIDEST)))
        wide, high = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < wide <= width and 0 < high <= height:
            left = int(random.integers(0, width - wide + 1))
            top = int(random.integers(0, height - high + 1))
            return left, top, left + wide, top + high
    return 0, 0, width, height


def _recoloured(image: Any, strength: float, random: Any) -> Any:
    from PIL import ImageEnhance  # noqa: PLC0415 - heavy

    for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = kind(image).enhance(random.uniform(1 - strength, 1 + strength))
    return image
