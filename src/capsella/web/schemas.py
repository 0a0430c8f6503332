"""What goes over the wire: every request and every answer of the explorer's API.

A *picture* is where an image comes from, a *scene* what is done with it before a network sees it. Images travel as grey levels:
bytes by row, column, channel, in base64.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_SIDE = 512
"""Of a picture that is sent, in pixels; a network's own input may be larger."""
MOST_SHOWN = 256
"""Capsules of one layer in one tree."""
MOST_DRAWN = 3
"""Classes that are reconstructed at once."""
MOST_VALUES = 1 << 16
"""Of all class capsules together."""


def _spelt(value: Any, allowed: str, expected: str) -> Any:
    if isinstance(value, str) and not re.fullmatch(allowed, value, re.ASCII):
        raise ValueError(f"expected {expected}")
    return value


# in an address all is text: what JSON would write as a number, or as true and false, and nothing that could be read as such.
_Digits = BeforeValidator(lambda value: _spelt(value, r"-?\d{1,20}", "a whole number"))
_TrueOrFalse = BeforeValidator(lambda value: _spelt(value, "true|false", "true or false"))

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Index: TypeAlias = Annotated[int, Field(ge=0, le=1 << 40), _Digits]
Count: TypeAlias = Annotated[int, _Digits]
Flag: TypeAlias = Annotated[bool, _TrueOrFalse]
Key: TypeAlias = Annotated[str, Field(min_length=1, max_length=100, examples=["capsnet_small"])]


class _Asked(BaseModel):
    """Base of requests: a misspelt key is a mistake, and so is false where a number is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Pixels(BaseModel):
    """Grey levels from 0 to 255."""

    height: int
    width: int
    channels: int
    data: str = Field(description="base64 of height × width × channels bytes, by row, column, channel")


# --- what is asked -----------------------------------------------------------------------------------------------------


class TestPicture(_Asked):
    """An image of a run's test set."""

    kind: Literal["test"]
    run: Key
    index: Index


class DrawnPicture(_Asked):
    """Grey levels that the page has: a drawing, or an upload."""

    kind: Literal["drawn"]
    height: int = Field(ge=1, le=MOST_SIDE)
    width: int = Field(ge=1, le=MOST_SIDE)
    channels: Literal[1, 3] = 1
    data: str = Field(
        max_length=-(-MOST_SIDE * MOST_SIDE * 3 // 3) * 4, description="as in Pixels", examples=["AAAAAAAAAAAAAAAA"]
    )


Picture: TypeAlias = Annotated[TestPicture | DrawnPicture, Field(discriminator="kind")]


class Over(_Asked):
    """A second picture on top of the first; their grey levels are added and cut off at 255."""

    picture: Picture
    x: int = Field(default=0, ge=-MOST_SIDE, le=MOST_SIDE, description="pixels to the right")
    y: int = Field(default=0, ge=-MOST_SIDE, le=MOST_SIDE, description="pixels down")


class Move(_Asked):
    """An affine change of the whole image, about its middle."""

    rotation: Number = Field(default=0.0, ge=-360, le=360, description="degrees, clockwise")
    x: Number = Field(default=0.0, ge=-MOST_SIDE, le=MOST_SIDE, description="pixels to the right")
    y: Number = Field(default=0.0, ge=-MOST_SIDE, le=MOST_SIDE, description="pixels down")
    shear: Number = Field(default=0.0, ge=-80, le=80, description="degrees")
    scale: Number = Field(default=1.0, ge=0.1, le=10)


class Scene(_Asked):
    """What a network is to see."""

    picture: Picture
    over: Over | None = None
    move: Move | None = None


class SeeRequest(_Asked):
    """Ask what a network makes of a scene."""

    scene: Scene
    negate: bool = Field(default=False, description="negate the poses of the lowest routing layer's input")
    most: int = Field(default=32, ge=1, le=MOST_SHOWN, description="capsules of a layer in the tree")
    draw: int = Field(default=1, ge=0, le=MOST_DRAWN, description="classes that are reconstructed, likeliest first")


class MoveRequest(_Asked):
    """Ask for the trees of an image as it is and changed."""

    scene: Scene = Field(description="its move is what is changed; without one both are the same")
    most: int = Field(default=32, ge=1, le=MOST_SHOWN)


class FollowRequest(_Asked):
    """Ask how activations change while the image does."""

    scene: Scene
    view: Literal["rotation", "x", "y", "shear", "scale"]


class CapsuleRequest(_Asked):
    """Ask for everything about one capsule in one scene."""

    scene: Scene
    layer: Index = Field(description="of the tree, 0 the lowest")
    capsule: Index
    negate: bool = False


class ReconstructRequest(_Asked):
    """Ask what the decoder draws from class capsules."""

    capsules: list[Annotated[list[Number], Field(max_length=4096)]] = Field(max_length=4096, description="[J][D]")
    drawn_class: Index = Field(alias="class")


class SheetRequest(ReconstructRequest):
    """Ask what each value of one class capsule does to the drawing."""

    offsets: list[Annotated[Number, Field(ge=-10, le=10)]] = Field(
        default=[-0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2, 0.25], min_length=1, max_length=21
    )


# --- what is answered --------------------------------------------------------------------------------------------------


class Problem(BaseModel):
    """What was wrong with a request."""

    detail: str = Field(description="one line: what was asked, and what would work")


class LayerInfo(BaseModel):
    """A layer of the tree."""

    name: str = Field(description="of the routing layer that made it; 'primary' where none did")
    capsules: int
    dim: int
    routing: str | None = Field(description="the algorithm that made it; null for the lowest")
    iterations: int | None = Field(description="of that routing")


class RunInfo(BaseModel):
    """One of the runs that were named when the explorer was started."""

    key: str = Field(description="names it in addresses")
    title: str
    model: str
    data: str
    split: str
    channels: int = Field(description="of the images that it takes")
    height: int
    width: int
    images: int = Field(description="of its test split that can be picked, the first ones")
    away: str | None = Field(description="why there are none of them")
    class_names: list[str] = Field(description="one for each score")
    data_classes: list[str] = Field(description="names of the classes of its test images")
    judges: bool = Field(description="whether these are the classes of its scores, so that an answer can be right or wrong")
    has_classes: bool = Field(description="whether each test image has one class")
    parameters: int
    layers: list[LayerInfo] = Field(description="of its parse tree, lowest first; empty where it has none")
    no_tree: str | None = Field(description="why it has none")
    below: str | None = Field(
        description="which capsule layers stand below its tree, and why they are not drawn; null for none"
    )
    decoder: bool
    knobs: bool = Field(description="whether it has class capsules that a decoder draws from")
    negates: bool = Field(description="whether it has capsules that can be negated")
    facts: list[tuple[str, str]] = Field(description="how it was trained, for people")


class Limits(BaseModel):
    """What the server takes."""

    upload_bytes: int
    upload_pixels: int
    most_shown: int = MOST_SHOWN


class About(BaseModel):
    """What there is to explore."""

    version: str
    runs: list[RunInfo]
    limits: Limits
    needs_token: bool = Field(default=False, description="whether whoever asks must show a token")


class Surveyed(BaseModel):
    """How much of a run's test set has been looked at; it is, image by image, while nothing else is asked."""

    done: int
    of: int


class Layer(BaseModel):
    """A layer of one image's tree."""

    capsules: int
    shown: list[int] = Field(description="numbers of the capsules in the tree, ascending")
    activations: list[float | None] = Field(description="of those; null for what is no number")
    dead: list[bool | None] = Field(description="of those, over the test images; null while too few have been looked at")
    active: float = Field(description="share of all its capsules with an activation of at least 0.1")


class Drawn(BaseModel):
    """What the decoder drew for a class."""

    drawn_class: int = Field(serialization_alias="class")
    image: Pixels


class Sight(BaseModel):
    """What a network made of a scene."""

    image: Pixels = Field(description="what it saw")
    label: int | None = Field(description="of a test image alone; null too where its set has other classes than the network")
    label_name: str | None = Field(description="what its set calls it; null for what is no test image alone")
    scores: list[float | None]
    certainties: list[float | None] = Field(description="of each class, up to 1: scores, or by softmax where these are logits")
    confidence: float | None = Field(description="of the answer, from 0 to 1: a length, an activation or a probability")
    answer: int
    layers: list[Layer] = Field(description="of its tree, lowest first")
    couplings: list[list[list[list[float | None]]]] = Field(
        description="[gap][iteration][lower][upper], of the capsules shown; signed where couplings are learned"
    )
    capsules: list[list[float | None]] | None = Field(description="class capsules [J][D]")
    reconstructions: list[Drawn]
    milliseconds: float = Field(description="in the network and around it, on the server")


class Kinship(BaseModel):
    """How alike a layer's activations are for two images."""

    correlation: float | None = Field(
        description="uncentred: the cosine of the two rows of activations; null where one is zero"
    )
    chance: float | None = Field(
        description="the same against the test images that were looked at, in the mean; null while there are none"
    )


class Moved(BaseModel):
    """An image as it is and changed; both trees show the same capsules."""

    before: Sight
    after: Sight
    layers: list[Kinship]


class Followed(BaseModel):
    """Activations beside those of the image as it is, over growing changes."""

    view: str
    amounts: list[float]
    layers: list[list[float | None]] = Field(description="[layer][amount]: correlation as in Kinship")
    chance: list[float | None] = Field(description="of each layer, as in Kinship")
    scores: list[float | None] = Field(description="[amount]: confidence in the answer for the image as it is")
    answers: list[int] = Field(description="[amount]")


class Box(BaseModel):
    """Pixels of the network's input; all four belong to it."""

    left: int
    top: int
    right: int
    bottom: int


class History(BaseModel):
    """One capsule over the test images that were looked at."""

    images: int = Field(description="those for which its activation is a number")
    mean: float
    std: float
    active: float = Field(description="share of images with an activation of at least 0.1")
    dead: bool = Field(description="mean and standard deviation of at most 0.01 (mitterreiter2023)")
    edges: list[float] = Field(description="of the histogram's bins, one more than there are counts")
    counts: list[int]
    by_class: list[float | None] = Field(description="mean activation for each class of the data; null without images of it")
    strongest: list[int] = Field(description="test images that activate it most")


class CapsuleAnswer(BaseModel):
    """One capsule in one scene."""

    layer: int
    capsule: int
    activation: float | None
    pose: list[float | None]
    box: Box | None = Field(description="every pixel that can reach it; null where none can")
    sensitivity: Pixels = Field(description="|∂ activation / ∂ pixel|, summed over channels, the largest is 255")
    peak: float | None = Field(description="that largest value; 0 where nothing changes it")
    history: History | None = Field(description="null while nothing has been looked at, and where no activation is a number")
    surveyed: Surveyed


class TestImage(BaseModel):
    """A test image as a gallery shows it."""

    index: int
    label: int | None = Field(description="its class, as in Sight")
    label_name: str | None
    answer: int | None = Field(description="null while it has not been looked at, as is confidence")
    confidence: float | None = Field(description="null as well where it is no number")


class Gallery(BaseModel):
    """Test images that were picked."""

    total: int = Field(description="how many fit, of those that have been looked at")
    images: list[TestImage]
    surveyed: Surveyed


class Sheet(BaseModel):
    """Drawings with one value of a class capsule changed: a row for each value, a column for each offset."""

    rows: int
    offsets: list[float]
    image: Pixels = Field(description="all drawings side by side")


class Curve(BaseModel):
    """A line of a plot."""

    name: str
    x: list[float]
    y: list[float]


class Plot(BaseModel):
    """What became of something over the training."""

    title: str
    x_label: str
    y_label: str
    is_share: bool
    is_log: bool
    curves: list[Curve]


class Training(BaseModel):
    """A run's curves."""

    plots: list[Plot]


class DoctorState(BaseModel):
    """The doctor's report of a run: begun when somebody asks for it, and then a page."""

    state: Literal["none", "working", "ready", "failed"]
    page: str = Field(description="where the page is once it is ready")
    problem: str | None = Field(default=None, description="why it failed")
