r"""The AC-GAN whose images chen2019's classifiers are tested on (Odena, Olah & Shlens 2017).

    G: h = z ⊙ e_y,  h → Dense 3·3·384 → ConvT5 192 → ConvT5/2 96 → ConvT5/2 1, tanh
    D: Conv3/2 32 → Conv3 64 → Conv3/2 128 → Conv3 256 → source (one logit), class (ten logits)

with z ∈ U(−1, 1)¹⁰⁰ and a learned vector e_y for each class; ReLU in G, LeakyReLU of slope 0.2 and a dropout of 0.3 after each
convolution of D. D learns from B real and B generated images, G from 2B more:

    L_D = BCE(source, 0.9 real, 0.1 generated) + mean over 2B of w · CE(class),  w = 2 real, 0 generated
    L_G = BCE(source, 0.9) + CE(class)

Sizes, the rate of 2e-4 and β₁ = 0.5 are the paper's; what it does not say (kernels, strides, soft labels, weights, starts,
batches of 100 in the order of the files) is that of Keras' example ``mnist_acgan.py``, whose sizes and rates are the same.

Departure: Keras of 2018 divided a weighted loss by the share of its weights that are not 0, a half in L_D, which doubled the
class loss of D. Here it is the mean that the example's weights, 2 and 0, are chosen for.

Everything random comes from generators of its own, so that nothing depends on what else a program draws; products are in
float32, and cuDNN takes algorithms that add in a fixed order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from capsella.train.processes import products_in

CLASSES, SIDE, LATENT = 10, 28, 100
REAL, FAKE = 0.9, 0.1
CLASS_REAL, CLASS_FAKE = 2.0, 0.0
SLOPE, DROPOUT = 0.2, 0.3
BETAS, EPSILON = (0.5, 0.999), 1e-7

# a normal distribution that is cut off at two deviations has so many of them left.
_CUT = 0.87962566103423978

FIGURES = (
    "discriminator_source_loss",
    "discriminator_class_loss",
    "generator_source_loss",
    "generator_class_loss",
    "real_taken_for_real",
    "generated_taken_for_generated",
    "real_class_right",
    "generated_class_right",
)
"""What is noted of each step, and told as means over an epoch: losses as they are summed, and shares; D's with its dropout."""


@dataclass(frozen=True)
class Settings:
    """How the AC-GAN is trained, and what is drawn from it.

    Attributes:
        epochs: after each of which images are drawn.
        steps: of an epoch, at most; all whole batches if None.
        batch_size: real images of a step.
        lr: of both Adams.
        narrowed: all numbers of channels are divided by it.
        per_class: images of each class that are drawn after an epoch.
    """

    epochs: int = 5
    steps: int | None = None
    batch_size: int = 100
    lr: float = 2e-4
    narrowed: int = 1
    per_class: int = 400

    def steps_of(self, count: int) -> int:
        """Return the steps of an epoch over ``count`` images."""
        whole = count // self.batch_size
        return whole if self.steps is None else min(self.steps, whole)


class Generator(nn.Module):
    """Draws digits of given classes.

    Args:
        narrowed: all numbers of channels are divided by it.

    Shapes:
        noise [B, 100], classes [B] -> images [B, 1, 28, 28] with values from −1 to 1.
    """

    def __init__(self, narrowed: int = 1) -> None:
        super().__init__()
        first, second, third = (channels // narrowed for channels in (384, 192, 96))
        self.classes = nn.Parameter(torch.empty(CLASSES, LATENT))
        self.dense = nn.Linear(LATENT, 3 * 3 * first)
        self.to_7 = nn.ConvTranspose2d(first, second, 5)
        self.to_14 = nn.ConvTranspose2d(second, third, 5, stride=2, padding=1)
        self.to_28 = nn.ConvTranspose2d(third, 1, 5, stride=2, padding=1)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Draw images."""
        # a product, whose gradient adds in a fixed order, where that of a look-up need not.
        one_hot = labels[:, None] == torch.arange(CLASSES, device=labels.device)  # [B, 10]
        conditions = one_hot.to(noise.dtype) @ self.classes  # [B, 100]
        hidden = F.relu(self.dense(noise * conditions))
        grid = rearrange(hidden, "b (h w c) -> b c h w", h=3, w=3)
        grid = F.relu(self.to_7(grid))  # [B, 192, 7, 7]
        grid = F.relu(doubled(grid, self.to_14))  # [B, 96, 14, 14]
        return torch.tanh(doubled(grid, self.to_28))  # [B, 1, 28, 28]


def doubled(grid: Tensor, layer: nn.ConvTranspose2d) -> Tensor:
    """Return a transposed convolution [B, C, 2H, 2W] of [B, c, H, W], placed as by TensorFlow's "same".

    Of the 2n + 3 places that a kernel of 5 reaches, that leaves out the first and the last two: the layer's padding is one on
    both sides, and one more goes here.
    """
    found: Tensor = layer(grid)
    return found[..., :-1, :-1]


class Discriminator(nn.Module):
    """Tells real images from generated ones, and their classes.

    Args:
        narrowed: all numbers of channels are divided by it.

    Shapes:
        images [B, 1, 28, 28] -> logits of being real [B], of the classes [B, 10].
    """

    def __init__(self, narrowed: int = 1) -> None:
        super().__init__()
        a, b, c, d = (channels // narrowed for channels in (32, 64, 128, 256))
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(1, a, 3, stride=2),
                nn.Conv2d(a, b, 3, padding=1),
                nn.Conv2d(b, c, 3, stride=2),
                nn.Conv2d(c, d, 3, padding=1),
            ]
        )
        self.source = nn.Linear(7 * 7 * d, 1)
        self.classes = nn.Linear(7 * 7 * d, CLASSES)

    def forward(self, images: Tensor, rng: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Tell; with dropout, drawn from ``rng``, where one is given."""
        grid = images
        for conv in self.convs:
            # "same" of TensorFlow, where a stride of 2 leaves an odd row and column: they are added at the end.
            padded = F.pad(grid, (0, 1, 0, 1)) if conv.stride == (2, 2) else grid
            grid = dropped(F.leaky_relu(conv(padded), SLOPE), rng)
        features = grid.flatten(1)
        return self.source(features).squeeze(1), self.classes(features)


def dropped(values: Tensor, rng: torch.Generator | None) -> Tensor:
    """Set values to zero at random and scale the others up; without a generator, leave them."""
    if rng is None:
        return values
    kept = torch.empty_like(values).bernoulli_(1 - DROPOUT, generator=rng)
    return values * kept.div_(1 - DROPOUT)


def draw_weights_(module: nn.Module, rng: torch.Generator) -> None:
    """Start all weights as Keras does: Glorot's uniform ones, normal ones in what draws images, and no biases."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(part.weight, generator=rng)
        elif isinstance(part, nn.ConvTranspose2d):
            _glorot_normal_(part.weight, rng)
        elif isinstance(part, Generator):
            _glorot_normal_(part.classes, rng)
        if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d) and part.bias is not None:
            nn.init.zeros_(part.bias)


def _glorot_normal_(weight: Tensor, rng: torch.Generator) -> None:
    ends = (weight.shape[0] + weight.shape[1]) * weight[0, 0].numel()
    deviation = (2 / ends) ** 0.5 / _CUT
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=rng)


def discriminator_losses(source: Tensor, classes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both losses of D on a batch whose first half is real.

    Args:
        source: logits [2B] of being real.
        classes: logits [2B, J].
        labels: [2B].
    """
    real = torch.arange(len(source), device=source.device) < len(source) // 2
    by_source = F.binary_cross_entropy_with_logits(source, torch.where(real, REAL, FAKE))
    by_class = F.cross_entropy(classes, labels, reduction="none")
    return by_source, (torch.where(real, CLASS_REAL, CLASS_FAKE) * by_class).mean()


def generator_losses(source: Tensor, classes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both losses of G: its images are to be taken for real ones, and for their classes."""
    return F.binary_cross_entropy_with_logits(source, torch.full_like(source, REAL)), F.cross_entropy(classes, labels)


class AcGan:
    """Both nets with their optimisers, and what everything random is drawn from.

    Args:
        settings: sizes and rates.
        seed: of weights, noise, classes and dropout.
        device: where it is trained.
    """

    def __init__(self, settings: Settings, seed: int, device: torch.device) -> None:
        self.settings, self.device = settings, device
        # they start alike on every device, without a draw from the program's own generators.
        with torch.device("meta"):
            nets = Generator(settings.narrowed), Discriminator(settings.narrowed)
        weights = torch.Generator().manual_seed(seed)
        for net in nets:
            net.to_empty(device="cpu")
            draw_weights_(net, weights)
            net.to(device)
        self.generator, self.discriminator = nets
        self.rng = torch.Generator(device).manual_seed(seed)
        self._adams = [torch.optim.Adam(net.parameters(), lr=settings.lr, betas=BETAS, eps=EPSILON) for net in nets]

    def noise(self, count: int) -> Tensor:
        """Draw z [count, 100]."""
        return torch.rand(count, LATENT, device=self.device, generator=self.rng) * 2 - 1

    def labels(self, count: int) -> Tensor:
        """Draw classes [count]."""
        return torch.randint(CLASSES, (count,), device=self.device, generator=self.rng)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train D, then G; return ``FIGURES`` [8] without waiting for them.

        Args:
            images: real ones [B, 1, 28, 28], from −1 to 1.
            labels: [B].
        """
        of_generator, of_discriminator = self._adams
        B = len(images)
        drawn = self.labels(B)
        with torch.no_grad():
            made = self.generator(self.noise(B), drawn)
        source, classes = self.discriminator(torch.cat((images, made)), self.rng)
        d_source, d_class = discriminator_losses(source, classes, torch.cat((labels, drawn)))
        of_discriminator.zero_grad()
        torch.autograd.backward(d_source + d_class)
        of_discriminator.step()
        # as many as D has seen.
        wanted = self.labels(2 * B)
        tricked, told = self.discriminator(self.generator(self.noise(2 * B), wanted), self.rng)
        g_source, g_class = generator_losses(tricked, told, wanted)
        of_generator.zero_grad()
        torch.autograd.backward(g_source + g_class, inputs=list(self.generator.parameters()))
        of_generator.step()
        shares = (
            source[:B] > 0,
            source[B:] <= 0,
            classes[:B].argmax(dim=1) == labels,
            told.argmax(dim=1) == wanted,
        )
        losses = (d_source.detach(), d_class.detach(), g_source.detach(), g_class.detach())
        return torch.stack((*losses, *(share.float().mean() for share in shares)))

    def epoch(self, images: Tensor, labels: Tensor) -> dict[str, float]:
        """Go through the training images once, in their order; return the means of ``FIGURES``.

        Args:
            images: bytes [N, 1, 28, 28].
            labels: [N].
        """
        steps, B = self.settings.steps_of(len(images)), self.settings.batch_size
        if not steps:
            raise ValueError(f"images has {len(images)} of them; expected at least a batch of {B}")
        total = torch.zeros(len(FIGURES), dtype=torch.float64, device=self.device)
        with repeatable():
            for k in range(steps):
                some = slice(k * B, (k + 1) * B)
                total += self.step(as_inputs(images[some]), labels[some])
        return dict(zip(FIGURES, (total / steps).tolist(), strict=True))

    @torch.no_grad()
    def draw(self) -> tuple[Tensor, float]:
        """Draw images of every class, and let D, without dropout, tell their classes.

        Returns:
            Bytes [10 · per_class, 1, 28, 28], class by class, and the share that D takes for another class than was asked for.
        """
        count = self.settings.per_class
        parts, wrong = [], torch.zeros((), dtype=torch.float64, device=self.device)
        with repeatable():
            for label in range(CLASSES):
                labels = torch.full((count,), label, device=self.device)
                values = self.generator(self.noise(count), labels)
                parts.append(as_bytes(values))
                wrong += (self.discriminator(values)[1].argmax(dim=1) != labels).double().mean()
        return torch.cat(parts), float(wrong) / CLASSES


def as_inputs(images: Tensor) -> Tensor:
    """Return grey levels from 0 to 255 as values from −1 to 1.

    Example:
        >>> as_inputs(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
        [-1.0, 1.0]
    """
    return images.float() / 127.5 - 1


def as_bytes(values: Tensor) -> Tensor:
    """Return values from −1 to 1 as grey levels, those of what classifiers are given.

    Example:
        >>> as_bytes(torch.tensor([-1.0, 0.0, 1.0])).tolist()
        [0, 128, 255]
    """
    return ((values + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Let a GPU add in a fixed order and in float32, and put the switches back."""
    cudnn = torch.backends.cudnn
    before = (cudnn.deterministic, cudnn.benchmark)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        with products_in("float32"):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
