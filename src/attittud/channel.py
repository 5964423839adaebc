"""The label channel: learn from auxiliary labels by what they mean for the primary classes.

Users call it in their own loop. It needs the predictions of a model of the auxiliary task, the
*source*, for labelled primary examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

_VERSION = 1
_CHUNK = 4096  # examples whose probabilities are held in float64 at once
_NO_INFORMATION = 1e-12  # nats; mutual information above chance that is less is rounding
_SMALLEST = torch.finfo(torch.float32).tiny  # keeps log C finite where a probability is 0


class LabelChannel:
    """Probabilities C[c, a] of auxiliary label a for primary class c, and a loss through them.

    `estimate` computes C from labelled primary examples. With p_s(a|x) the source's prediction, y_i
    the primary labels, n_c the number of examples of class c, and π(a) the share of label a:

        Ĉ[c, a] = (Σ_{i: y_i = c} p_s(a|x_i) + π(a)) / (n_c + 1)
        λ = max(0, 1 − Ī / I)
        C = λ Ĉ + (1 − λ) 1πᵀ

    I is the mutual information of class and mean prediction, Ī its mean over permutations of the
    labels. λ is the *openness*. It is 0 if the predictions of the source follow the primary classes
    no more than they would by chance; then the loss has a gradient of exactly zero.

    A multi-label task counts as L tasks with two classes each. A source with several labels for
    each example counts as S sources. Every pair of task and source has a channel of its own, and
    the dimensions in brackets are there. The constructor takes a matrix that you have already:

    Args:
        matrix: C, [S x] [L x] classes x labels. Each row sums to 1.
        openness: λ, [S x] [L].
        shares: π, [S x] labels.
    """

    def __init__(self, matrix: Tensor, openness: Tensor | float, shares: Tensor) -> None:
        self.matrix = torch.as_tensor(matrix).detach().to("cpu", torch.float64)
        """C in float64 on the CPU, [S x] [L x] classes x labels."""
        self.openness = torch.as_tensor(openness).detach().to("cpu", torch.float64)
        """λ between 0 (closed) and 1, [S x] [L]: a scalar tensor for one task and one source."""
        self.shares = torch.as_tensor(shares).detach().to("cpu", torch.float64)
        """π, the share of each label in the source, [S x] labels."""
        # The dimension L is there if openness has one dimension more than shares have before labels.
        dimensions_of_tasks = self.openness.ndim - (self.shares.ndim - 1)
        fits = (
            self.matrix.ndim >= 2
            and self.shares.ndim in (1, 2)
            and dimensions_of_tasks in (0, 1)
            and (dimensions_of_tasks == 0 or self.matrix.shape[-2] == 2)  # no and yes
        )
        size = (*self.openness.shape, *self.matrix.shape[-2:-1], *self.shares.shape[-1:])
        sources = self.shares.shape[:-1]
        if not fits or self.matrix.shape != size or self.openness.shape[: len(sources)] != sources:
            raise ValueError(
                "matrix: expected [S x] [L x] classes x labels with openness [S x] [L] and shares "
                f"[S x] labels, got {tuple(self.matrix.shape)}, {tuple(self.openness.shape)} and "
                f"{tuple(self.shares.shape)}"
            )
        if not ((self.openness >= 0) & (self.openness <= 1)).all():
            raise ValueError(f"openness must be between 0 and 1, got {self.openness.tolist()}")
        _check_distributions("matrix", self.matrix)
        _check_distributions("shares", self.shares)
        self._multi_label = dimensions_of_tasks == 1
        # S x L x classes x labels
        self._whole = self.matrix.reshape(sources.numel(), -1, *self.matrix.shape[-2:])
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}
        """What `_gather` looks up, for each device and type that it was used with."""

    @classmethod
    def estimate(
        cls,
        source_log_probs: Tensor,
        primary_labels: Tensor,
        source_shares: Tensor,
        *,
        classes: int | None = None,
        permutations: int = 40,
        seed: int = 0,
    ) -> LabelChannel:
        """Estimate C and λ from n labelled primary examples.

        The source must not have seen their primary labels. Pass each example once: copies make
        chance look smaller than it is. Sums are computed on the CPU in float64. The permutations
        are `torch.randperm` of the labelled examples, from a generator of their own.

        >>> log_probs = torch.tensor([[0.1, 0.9], [0.9, 0.1]]).log().repeat(20, 1)
        >>> labels, shares = torch.tensor([0, 1] * 20), torch.tensor([0.5, 0.5])
        >>> LabelChannel.estimate(log_probs, labels, shares)
        LabelChannel(classes=2, labels=2, openness=0.98)

        Args:
            source_log_probs: log p_s(a|x), n x [S x] labels.
            primary_labels: n class numbers; n x L zeros and ones for a multi-label task. Negative
                numbers and NaN mark missing labels.
            source_shares: π, [S x] labels, summing to 1.
            classes: the number of primary classes; by default the largest label plus 1.
            permutations: how many permutations Ī is the mean of.
            seed: of the permutations.
        """
        log_probs, shares = _check_source(source_log_probs, source_shares)
        labels, classes = _check_primary(primary_labels, len(log_probs), classes)
        if isinstance(permutations, bool) or not isinstance(permutations, int) or permutations < 1:
            raise ValueError(f"permutations must be a positive whole number, got {permutations!r}")
        prior = shares.reshape(-1, 1, shares.shape[-1])  # S x 1 x labels
        matrices = []
        opennesses = []
        for column in labels.T:  # one column, or one for each task of a multi-label task
            rows = (column >= 0).nonzero()[:, 0]
            codes = column[rows].long()
            generator = torch.Generator().manual_seed(seed)
            orders = [torch.randperm(len(codes), generator=generator) for _ in range(permutations)]
            # The classes of the examples first, then their permutations.
            assignments = [codes, *(codes[order] for order in orders)]
            sums = _sums_by_class(log_probs, rows, assignments, classes)
            # Ĉ, λ and C for each source, as in the formulas of the class.
            counts = torch.bincount(codes, minlength=classes)
            estimate = (sums[0] + prior) / (counts + 1)[:, None]
            openness = _openness(sums / max(1, len(rows)))
            weight = openness[:, None, None]
            matrices.append(weight * estimate + (1 - weight) * prior)
            opennesses.append(openness)
        size = (*shares.shape[:-1], *primary_labels.shape[1:])
        matrix = torch.stack(matrices, dim=1).reshape(*size, classes, shares.shape[-1])
        return cls(matrix, torch.stack(opennesses, dim=1).reshape(size), shares)

    def loss(
        self, logits: Tensor, labels: Tensor, reduction: Literal["mean", "none"] = "mean"
    ) -> Tensor:
        """Compute −log Σ_c p(c|x) C[c, a] for auxiliary examples x with labels a.

        The gradient at the logits of an example is p − q, where q is the posterior. With several
        channels, the loss of an example is the mean over its labels and over the primary tasks.

        Args:
            logits: of the primary classes, m x classes; m x L for a multi-label task.
            labels: labels of the source, m [x S]. Negative numbers and NaN mark missing labels.
            reduction: "none" gives m losses, 0 for an example without a label. "mean" is the mean
                over the examples that have a label, 0 if there is none.

        Returns:
            The loss in float32 (float64 for float64 logits).
        """
        if reduction not in ("mean", "none"):
            raise ValueError(f"reduction must be 'mean' or 'none', got {reduction!r}")
        log_probs = self._log_probs(logits)
        codes, observed = self._codes(labels, logits)
        columns, log_shares, is_open = self._gather(codes, log_probs)
        # log Σ_c p(c|x) C[c, a], m x S x L
        evidence = torch.logsumexp(log_probs[:, None] + columns, dim=-1)
        # Through a closed channel p − q would be rounding noise; a constant has no gradient.
        evidence = torch.where(is_open, evidence, log_shares[..., None])
        losses = torch.where(observed[..., None], -evidence, 0.0).mean(dim=2)  # m x S
        per_example = losses.sum(dim=1) / observed.sum(dim=1).clamp(min=1)
        if reduction == "none":
            return per_example
        return per_example.sum() / observed.any(dim=1).sum().clamp(min=1)

    def posterior(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """Compute q(c) ∝ p(c|x) C[c, a]: what a model and a label together say about the class.

        q is p where an example has no label and where the channel is closed.

        Args:
            log_probs: log p(c|x) or logits, as in `loss`.
            labels: as in `loss`.

        Returns:
            m x [S x] [L x] classes. The two classes of a multi-label task are no and yes.
        """
        prior = self._log_probs(log_probs)
        codes, observed = self._codes(labels, log_probs)
        columns, _, is_open = self._gather(codes, prior)
        informative = (observed[..., None] & is_open)[..., None]
        posterior = (prior[:, None] + torch.where(informative, columns, 0.0)).softmax(dim=-1)
        return posterior.reshape(len(prior), *self.matrix.shape[:-1])

    def state_dict(self) -> dict[str, Any]:
        """Return the three tensors of the channel and the version of this format."""
        tensors = {"matrix": self.matrix, "openness": self.openness, "shares": self.shares}
        return {"version": _VERSION} | {name: tensor.clone() for name, tensor in tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the channel of a `state_dict`, of any size."""
        if state.get("version") != _VERSION:
            raise ValueError(
                f"version {state.get('version')!r} of a LabelChannel's state cannot be read, only "
                f"{_VERSION}; estimate the channel again"
            )
        for name in ("matrix", "openness", "shares"):
            if not isinstance(state.get(name), Tensor):
                raise ValueError(f"{name}: a LabelChannel's state needs a tensor of this name")
        LabelChannel.__init__(self, state["matrix"], state["openness"], state["shares"])

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LabelChannel:
        """Make a channel from a `state_dict`."""
        channel = cls.__new__(cls)
        channel.load_state_dict(state)
        return channel

    def __repr__(self) -> str:
        classes, labels = self.matrix.shape[-2:]
        openness = ", ".join(f"{value:.2f}" for value in self.openness.flatten())
        if self.openness.ndim > 0:
            openness = f"[{openness}]"
        return f"LabelChannel(classes={classes}, labels={labels}, openness={openness})"

    def _log_probs(self, logits: Tensor) -> Tensor:
        """Convert logits to m x L x classes log-probabilities, in float32 at least."""
        _, tasks, classes, _ = self._whole.shape
        outputs = classes
        if self._multi_label:
            outputs = tasks
        if logits.ndim != 2 or logits.shape[1] != outputs:
            raise ValueError(f"logits: expected m x {outputs}, got {tuple(logits.shape)}")
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._multi_label:
            return torch.stack([F.logsigmoid(-logits), F.logsigmoid(logits)], dim=-1)
        return logits.log_softmax(dim=-1)[:, None]

    def _codes(self, labels: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Check the labels of m examples. Returns them as class numbers (m x S, with 0 where there is
        none), and which of them are there (m x S).
        """
        expected = (len(logits), *self.shares.shape[:-1])
        if labels.shape != expected:
            raise ValueError(f"labels: expected shape {expected}, got {tuple(labels.shape)}")
        if labels.device.type == "cpu":  # elsewhere a look at the values would wait for the device
            _check_codes("labels", labels, self.shares.shape[-1])
        labels = labels.to(logits.device).reshape(len(logits), len(self._whole))
        observed = labels >= 0
        return torch.where(observed, labels, 0).long(), observed

    def _gather(self, codes: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look up the columns of the labels `codes` (m x S), on the device and in the type of `like`.

        Returns:
            log C[·, a], m x S x L x classes; log π(a), m x S; and which channels are open, S x L.
        """
        key = (like.device, like.dtype)
        if key not in self._tables:
            sources, tasks, _, labels = self._whole.shape
            table = self._whole.permute(0, 3, 1, 2)  # S x labels x L x classes
            shares = self.shares.reshape(sources, labels)
            is_open = self.openness.reshape(sources, tasks) > 0
            self._tables[key] = (
                table.clamp(min=_SMALLEST).log().to(like),
                shares.clamp(min=_SMALLEST).log().to(like),
                is_open.to(like.device),
            )
        table, log_shares, is_open = self._tables[key]
        source = torch.arange(len(table), device=like.device)
        return table[source, codes], log_shares[source, codes], is_open


def _sums_by_class(
    log_probs: Tensor, rows: Tensor, assignments: list[Tensor], classes: int
) -> Tensor:
    """Sum the probabilities of the source over the examples of each class.

    Rows are added to the sum of their class. This is faster than a product with one-hot labels,
    and needs no matrix of n x classes.

    Args:
        log_probs: n x S x labels.
        rows: the examples that have a primary label.
        assignments: R vectors with one class for each of these examples.
        classes: the number of primary classes.

    Returns:
        R x S x classes x labels.
    """
    sums = torch.zeros(len(assignments), classes, *log_probs.shape[1:], dtype=torch.float64)
    for start in range(0, len(rows), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        probs = log_probs[rows[chunk]].to(torch.float64).softmax(dim=-1)
        for total, assignment in zip(sums, assignments, strict=True):
            total.index_add_(0, assignment[chunk], probs)
    return sums.transpose(1, 2)


def _openness(joint: Tensor) -> Tensor:
    """Compute λ = max(0, 1 − Ī / I) for S sources, from joint distributions J.

        I = Σ_ca J[c, a] log(J[c, a] / (J[c] J[a]))        the mutual information
        Ī = the mean of I over permuted labels

    Args:
        joint: (1 + permutations) x S x classes x labels. The first entry is the joint distribution
            of class and mean prediction, the others belong to permuted labels.

    Returns:
        λ (S), 0 where I is above chance by no more than rounding.
    """
    independent = joint.sum(dim=-1, keepdim=True) * joint.sum(dim=-2, keepdim=True)
    smallest = torch.finfo(joint.dtype).tiny
    # xlogy is 0 where J is 0.
    terms = torch.xlogy(joint, joint) - torch.xlogy(joint, independent.clamp(min=smallest))
    information = terms.sum(dim=(-2, -1))  # I, and then one number for each permutation
    by_chance = information[1:].mean(dim=0)
    informative = information[0] - by_chance > _NO_INFORMATION
    ratio = by_chance / torch.where(informative, information[0], 1.0)
    return torch.where(informative, 1 - ratio, 0.0).clamp(0, 1)


def _check_source(log_probs: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the predictions as n x S x labels and the shares in float64, both on the CPU."""
    log_probs = log_probs.detach().cpu()
    if log_probs.ndim not in (2, 3) or not log_probs.is_floating_point():
        raise ValueError(
            "source_log_probs: expected n x labels or n x S x labels log-probabilities, got "
            f"{log_probs.dtype} of shape {tuple(log_probs.shape)}"
        )
    totals = log_probs.float().logsumexp(dim=-1)
    if not (totals.abs() < 0.1).all():  # bfloat16 rounds by less; NaN is refused too
        raise ValueError(
            "source_log_probs: rows are not log-probabilities; apply log_softmax to the logits"
        )
    shares = shares.detach().to("cpu", torch.float64)
    if shares.shape != log_probs.shape[1:]:
        raise ValueError(
            f"source_shares: expected {tuple(log_probs.shape[1:])}, as in a row of "
            f"source_log_probs, got {tuple(shares.shape)}"
        )
    _check_distributions("source_shares", shares)
    shares = shares / shares.sum(dim=-1, keepdim=True)
    sources = shares.shape[:-1].numel()
    return log_probs.reshape(len(log_probs), sources, log_probs.shape[-1]), shares


def _check_primary(labels: Tensor, examples: int, classes: int | None) -> tuple[Tensor, int]:
    """Return the labels as n x L on the CPU, and the number of classes."""
    labels = labels.detach().cpu()
    if labels.ndim not in (1, 2) or len(labels) != examples:
        raise ValueError(
            f"primary_labels: expected a row for each of the {examples} rows of source_log_probs, "
            f"got {tuple(labels.shape)}"
        )
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise ValueError("primary_labels: expected at least one column of labels, got none")
    if classes is not None and classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    observed = labels[labels >= 0]
    if labels.ndim == 2:
        classes = 2
    elif classes is None:
        if len(observed) == 0:
            raise ValueError("primary_labels: there is no label; pass classes=")
        classes = int(observed.max()) + 1
    _check_codes("primary_labels", labels, classes)
    return labels.reshape(examples, labels.shape[1:].numel()), classes


def _check_codes(name: str, labels: Tensor, count: int) -> None:
    """Refuse labels that are neither missing nor whole numbers below `count`."""
    observed = labels[labels >= 0]
    wrong = observed[(observed >= count) | (observed != observed.long())]
    if len(wrong):
        raise ValueError(
            f"{name}: got {wrong[0].item()}, expected whole numbers from 0 to {count - 1}; write "
            "-1 where there is no label"
        )


def _check_distributions(name: str, rows: Tensor) -> None:
    """Refuse rows that are no probabilities: negative, or with a sum further than 1e-3 from 1."""
    sums_to_one = ((rows.sum(dim=-1) - 1).abs() < 1e-3).all()
    if not (sums_to_one and (rows >= 0).all()):
        raise ValueError(f"{name}: expected shares of at least 0 that sum to 1")
