"""Keys and values of a decoding batch: each distinct prompt's once, and behind it each row's own.

Attention over the two parts is merged by their log-sum-exp (cascade attention), so the prompt's keys are read
once for all its completions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.models.packing import PackedLayout, Span


class RecordingLayout(PackedLayout):
    """A packed layout that also keeps every layer's keys and values, for the prefill."""

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        super().__init__(spans, device)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        self.keys.append(key_KND)
        self.values.append(value_KND)
        return super().attend(layer, query_HND, key_KND, value_KND, scaling)


class KVCache:
    """The layout of decoding: one new token a row; R rows over P prompts; all rows at the same step.

    Memory: prompts [layers, P, K, L, D], padded to the longest; own tokens [layers, R, K, max_new, D].
    """

    def __init__(self, recorded: RecordingLayout, prompt_index_PL: Tensor, prompt_lengths_P: Tensor) -> None:
        pad_PL = torch.arange(prompt_index_PL.shape[1], device=prompt_index_PL.device) >= prompt_lengths_P[:, None]
        self._hidden_P11L = pad_PL[:, None, None, :]
        self._prompt_keys = [key[:, prompt_index_PL].transpose(0, 1).contiguous() for key in recorded.keys]
        self._prompt_values = [value[:, prompt_index_PL].transpose(0, 1).contiguous() for value in recorded.values]
        self._own_keys: list[Tensor] = []
        self._own_values: list[Tensor] = []
        self._rows_PG = torch.zeros(0, 0, dtype=torch.long)
        self._slot_R = torch.zeros(0, dtype=torch.long)
        self.step = 0

    def open_rows(self, prompt_of_row: Sequence[int], max_new_tokens: int) -> None:
        """Make room for rows, each behind the prompt of the given index."""
        rows = len(prompt_of_row)
        for key in self._prompt_keys:
            _, K, _, D = key.shape
            self._own_keys.append(key.new_empty(rows, K, max_new_tokens, D))
            self._own_values.append(key.new_empty(rows, K, max_new_tokens, D))
        self._regroup(prompt_of_row)

    def keep(self, rows: Sequence[int], prompt_of_row: Sequence[int]) -> None:
        """Drop all rows but these. ``prompt_of_row`` is that of the rows that stay."""
        index = torch.tensor(rows, dtype=torch.long, device=self._slot_R.device)
        self._own_keys = [key[index] for key in self._own_keys]
        self._own_values = [value[index] for value in self._own_values]
        self._regroup(prompt_of_row)

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        H, R, D = query_HND.shape
        K = key_KND.shape[0]
        own_key, own_value = self._own_keys[layer], self._own_values[layer]
        own_key[:, :, self.step] = key_KND.transpose(0, 1)
        own_value[:, :, self.step] = value_KND.transpose(0, 1)
        seen = slice(0, self.step + 1)
        query_RKQD = query_HND.transpose(0, 1).reshape(R, K, H // K, D) * scaling
        own = _attend_part(query_RKQD, own_key[:, :, seen], own_value[:, :, seen], None)
        prompt = self._attend_prompts(layer, query_RKQD)
        out_RKQD = _merge(own, prompt)
        return out_RKQD.reshape(R, H, D).transpose(0, 1)

    def _attend_prompts(self, layer: int, query_RKQD: Tensor) -> tuple[Tensor, Tensor]:
        """Each prompt's keys against all its rows at once, and the results back in the order of the rows."""
        _, K, Q, D = query_RKQD.shape
        P, G = self._rows_PG.shape
        query_PKMD = query_RKQD[self._rows_PG].transpose(1, 2).reshape(P, K, G * Q, D)
        out, lse = _attend_part(query_PKMD, self._prompt_keys[layer], self._prompt_values[layer], self._hidden_P11L)
        out_rows = out.reshape(P, K, G, Q, D).transpose(1, 2).reshape(P * G, K, Q, D)
        lse_rows = lse.reshape(P, K, G, Q).transpose(1, 2).reshape(P * G, K, Q)
        return out_rows[self._slot_R], lse_rows[self._slot_R]

    def _regroup(self, prompt_of_row: Sequence[int]) -> None:
        """Index tables between rows and [prompt, member]; empty places point at row 0 and are never read."""
        device = self._hidden_P11L.device
        P = self._hidden_P11L.shape[0]
        members: list[list[int]] = [[] for _ in range(P)]
        for row, prompt in enumerate(prompt_of_row):
            members[prompt].append(row)
        G = max(map(len, members), default=0)
        slots = [prompt * G + members[prompt].index(row) for row, prompt in enumerate(prompt_of_row)]
        self._rows_PG = torch.tensor([m + [0] * (G - len(m)) for m in members], dtype=torch.long, device=device)
        self._slot_R = torch.tensor(slots, dtype=torch.long, device=device)


def _attend_part(
    query_BKMD: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Softmax attention over one part of the keys, with the log-sum-exp [B, K, M] that merging needs."""
    scores_BKMS = (query_BKMD @ key_BKSD.transpose(-1, -2)).float()
    if hidden is not None:
        scores_BKMS = scores_BKMS.masked_fill(hidden, -torch.inf)
    lse_BKM = torch.logsumexp(scores_BKMS, dim=-1)
    weights_BKMS = torch.exp(scores_BKMS - lse_BKM[..., None]).to(value_BKSD.dtype)
    return weights_BKMS @ value_BKSD, lse_BKM


def _merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Two attentions over disjoint keys as one: weights are the parts' shares of the softmax denominator."""
    share = torch.sigmoid(first[1] - second[1])[..., None].to(first[0].dtype)
    return first[0] * share + second[0] * (1 - share)
