"""Reasons: why a layer or a set of channels is left as it is.

Code branches on the cause. The text is for people and for plan files, and no decision depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOTE = True  # the layer was compressed, and the text says how that differs from the request


class Cause(Enum):
    """What keeps a layer or its channels from being compressed; details of the text are in braces."""

    # The user's choice.
    EXCLUDED = "excluded"
    TOO_FEW_FOR_MULTIPLE = "has {count}, and round_to={multiple} keeps all of them"

    # How the model uses the layer.
    OUTPUT = "the model's output"
    NEVER_CALLED = (
        "never called as a layer: the example leaves it unused, or code takes its weight in a way that is not followed"
    )
    NOT_CALLED_ITSELF = "never called by itself"
    SEVERAL_NAMES = "the model knows it by several names"
    OWN_FORWARD = "{type} has a custom forward or hooks"
    UNKNOWN_TYPE = "{type} is neither a convolution nor a linear layer"

    # Where its weight comes from.
    SHARED_WEIGHT = "shares its weight with {other}"
    SHARED_WITH_EXCLUDED = "shares its weight with {other}, which is excluded"
    COMPUTED_WEIGHT = "its weight is computed from others"
    CHANNELS_OF_SHARED_WEIGHT = "{layer} shares its weight with {other}"
    CHANNELS_OF_COMPUTED_WEIGHT = "{layer} computes its weight from other parameters"

    # What else the model does with the channels.
    READ_FROM_SEVERAL_PLACES = "{layer} reads them along two axes at once, so that none of its inputs is one channel"
    SEES_NEIGHBOURS = "{layer} slides a window over them, so that each depends on its neighbours"
    MIXES_POSITIONS = "it mixes positions, such as tokens, and no channels"
    SEEN_IN_SEVERAL_PLACES = "{layer} treats several of them as one channel"
    AVERAGED_OVER = "{layer} ({type}) averages over them"
    READ_BY = "{layer} ({type}) reads them"
    WRITTEN_BY = "{layer} ({type}) writes them"
    USED_OUTSIDE = "code uses them outside of any layer, in a way that is not followed"
    WEIGHT_IS_USED = "the model computes with the weight of {layer} outside of that layer, by {operation}"
    UNKNOWN_OPERATION = "what the operation {operation} does to channels is not known"
    MIXED = "{operation} mixes the channels"
    SUMMED_BY_PRODUCT = "a matrix product sums over the channels"
    SUMMED_BY_ATTENTION = "attention sums over the channels"
    SPLIT_INTO_HEADS = "attention splits the channels into heads"
    TWO_AXES = "they are laid out as a table, such as groups by channels, of which only whole rows or columns could go"
    USED_BY_MANY = "what comes from it is used for many channels or products at once, such as all heads"
    SCALES_MANY = "one number of it scales many channels"
    MEETS_FIXED_SIZE = "they meet {tensor}, whose size does not change with them"
    JOINED_WITH_FIXED_SIZE = "joined with a tensor whose size does not change with them"
    JOINED_WITH_PADDING = "padded to a fixed number of channels"
    NOTHING_LEFT = "the example leaves nothing of them: give one in which something is found"
    TAKEN_APART = "code takes them apart by position, and relies on how many there are"
    UNEQUAL_PARTS = (
        "code takes parts of them by position, such as halves after a shuffle, and no choice leaves each part as many"
    )
    NOTHING_TRAINED = "no layer has them: they are in buffers and numbers of the code only"

    # The groups of grouped convolutions.
    IN_SEVERAL_GROUPS = "{layer} has groups, and one channel is part of several"
    UNEQUAL_GROUPS = "they are spread unequally over the groups of {layer}"
    GROUPED_DIFFERENTLY = "{layer} groups them differently from another layer"
    ONLY_ONE = "the only one"
    ALL_TOGETHER = "all of its channels go together, so that none can go by itself"
    ONLY_ONE_OF_GROUP = "the only channel of its group, which would be left empty"

    # What a trial on the example shows.
    FAILS_WITH_FEWER = "the model's code does not run with fewer of them: {error}"
    REMOVAL_DIFFERS = "removing them is not the same as silencing them"

    # Low rank.
    RANK_ONE = "its matrices have rank 1, as those of depthwise convolutions"
    NEVER_SMALLER = "two layers would not be smaller at any rank"
    WHOLE_IS_SMALLER = "two layers would be smaller only above rank={least}"
    FAILS_AS_TWO = "the model does not run with two layers in its place ({error})"
    DIFFERS_AS_TWO = "the model does not compute the same with two layers in its place"

    # Notes.
    TWO_NOT_SMALLER = "its rank is lower, in one layer: two would be smaller only above rank={least}", NOTE
    LEAVES_CONSTANT = (
        "its silent channels leave a constant, which the layers behind lose with them: only calibration recovers it",
        NOTE,
    )
    NEARLY_EMPTY = "nearly empty: {nonzero} of {count} weights left", NOTE
    EXAMPLE_HIDES = (
        "{what}: trials on it may take for removable what makes a difference on others; give inputs like real ones",
        NOTE,
    )
    NO_CALIBRATION = "none was given: the remaining weights were not fitted", NOTE
    NO_CALIBRATION_FOR_NORMS = (
        "none was given: neither the remaining weights nor BatchNorm statistics were fitted",
        NOTE,
    )
    SYNTHETIC = "synthetic inputs, made from the statistics of batch norms: no data were seen", NOTE
    FEW_INPUTS = "only {count} inputs, too few to fit weights and statistics well: give some hundred", NOTE
    NOT_JUDGED_FEW = (
        "refitted without asking whether plain would be better: {count} inputs can be held out, give some hundred",
        NOTE,
    )
    NOT_JUDGED = (
        "refitted without asking whether plain would be better: the outputs of part of a batch cannot be compared",
        NOTE,
    )
    BAKED = (
        "its {tensor}, which {by} computed, is stored as it is in evaluation: training on would move it directly",
        NOTE,
    )
    REPLACED = "{type} became a plain {plain} that computes the same in evaluation", NOTE
    NOT_BAKED = "its weight stays computed: no plain layer computes the same as {type}", NOTE
    NOT_BAKED_SHARED = "its weight stays computed: it is computed from a parameter of {other}", NOTE
    NOT_BAKED_CODE = (
        "its weight stays computed: the model needs more than a plain layer in its place ({error})",
        NOTE,
    )
    NOT_RUN = "not run by the example: unused, in a branch that the example does not take, or used by its weights", NOTE
    TARGET_STEP = "{reached} of the dense network is reached, and the next larger network has {larger}: {made_by}", NOTE
    CONFIG_OF_DENSE = (
        "its numbers are those of the dense network: save_pretrained needs as_pretrained(small.model, example)",
        NOTE,
    )
    MAY_NOT_FIT = (
        "not run by the example, and takes {count} channels, as many as {layers} had before: if it reads these, it no longer "
        "fits; give an example that runs it, or exclude them",
        NOTE,
    )
    NOT_CHECKED_INPUT = "what it computes is not checked: an input of type {type} cannot be made from its shape", NOTE
    NOT_CHECKED_FAILS = "what it computes is not checked: it does not run on random inputs ({error})", NOTE
    NOT_CHECKED_RANDOM = "what it computes is not checked: its outputs are random", NOTE
    NOT_CHECKED_OUTPUT = "what it computes is not checked: its outputs cannot be compared", NOTE
    STATISTICS_BETWEEN = "interpolated between those stored for the ratios {larger} and {smaller}", NOTE
    STATISTICS_OF_LARGER = "those stored for the ratio {ratio}, the nearest", NOTE
    MACS_OF_LARGER = "counted at the ratio {ratio}: they depend on more than shapes", NOTE
    NOT_FITTED_CALLED_TWICE = "not fitted: used more than once", NOTE
    NOT_FITTED_SHARED = "not fitted: shares its weight", NOTE
    NOT_FITTED_OWN_FORWARD = "not fitted: has a custom forward or hooks", NOTE
    NOT_FITTED_TRANSPOSED = "not fitted: transposed", NOTE

    def __init__(self, text: str, is_note: bool = False) -> None:
        self.text = text
        self.is_note = is_note


@dataclass(frozen=True)
class Reason:
    """A cause with the details of one case, such as the other layer that shares a weight."""

    cause: Cause
    details: tuple[tuple[str, object], ...] = ()

    @property
    def text(self) -> str:
        return self.cause.text.format_map(dict(self.details))

    def __str__(self) -> str:
        return self.text


def because(cause: Cause, **details: object) -> Reason:
    """Return the reason with these details.

    >>> str(because(Cause.SHARED_WEIGHT, other="decoder"))
    'shares its weight with decoder'
    """
    return Reason(cause, tuple(details.items()))
