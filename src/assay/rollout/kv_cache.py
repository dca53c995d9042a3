"""Keys and values of a decoding batch: each distinct prompt's once, and behind it each lane's own.

Attention over the two parts is merged by their log-sum-exp (cascade attention), so the prompt's keys are read
once for all its lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.models.attention import Layout


class RecordingLayout:
    """A layout that also keeps every layer's keys and values, for the prefill."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        # Under autocast rotary embedding leaves keys in float32, and attention rounds them to the values' precision.
        self.keys.append(key_KND.to(value_KND.dtype))
        self.values.append(value_KND)
        return self._layout.attend(layer, query_HND, key_KND, value_KND, scaling)


class KVCache:
    """The layout of decoding: one new token a lane; L lanes over P prompts; all lanes at the same step.

    Memory: prompts [layers, P, K, S, D], padded to the longest; own tokens [layers, L, K, max_new, D].
    """

    def __init__(
        self, recorded: RecordingLayout, prompt_places: Sequence[tuple[int, ...]], max_new_tokens: int
    ) -> None:
        """One lane for each prompt. ``prompt_places``: where its tokens stand in what was recorded."""
        device = recorded.keys[0].device
        lengths_P = torch.tensor([len(places) for places in prompt_places], device=device)
        longest = max(map(len, prompt_places))
        index_PS = torch.tensor([p + (0,) * (longest - len(p)) for p in prompt_places], device=device)
        self._hidden_P11S = (torch.arange(longest, device=device) >= lengths_P[:, None])[:, None, None, :]
        self._prompt_keys = [key[:, index_PS].transpose(0, 1).contiguous() for key in recorded.keys]
        self._prompt_values = [value[:, index_PS].transpose(0, 1).contiguous() for value in recorded.values]
        self._own_keys = [_room(key, len(prompt_places), max_new_tokens) for key in self._prompt_keys]
        self._own_values = [_room(value, len(prompt_places), max_new_tokens) for value in self._prompt_values]
        self._prompt_of_lane = list(range(len(prompt_places)))
        self._regroup()
        self.step = 0

    def part(self, parents: Sequence[int]) -> None:
        """New lanes, each going on from the lane ``parents`` names; lanes that are not named end."""
        if list(parents) == list(range(len(self._prompt_of_lane))):
            return
        index = torch.tensor(parents, dtype=torch.long, device=self._slot_L.device)
        self._own_keys = [_copied(key, index, self.step) for key in self._own_keys]
        self._own_values = [_copied(value, index, self.step) for value in self._own_values]
        self._prompt_of_lane = [self._prompt_of_lane[lane] for lane in parents]
        self._regroup()

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        H, L, D = query_HND.shape
        K = key_KND.shape[0]
        own_key, own_value = self._own_keys[layer], self._own_values[layer]
        own_key[:, :, self.step] = key_KND.transpose(0, 1)
        own_value[:, :, self.step] = value_KND.transpose(0, 1)
        seen = slice(0, self.step + 1)
        query_LKQD = query_HND.transpose(0, 1).reshape(L, K, H // K, D) * scaling
        own = _attend_part(query_LKQD, own_key[:, :, seen], own_value[:, :, seen], None)
        prompt = self._attend_prompts(layer, query_LKQD)
        out_LKQD = _merge(own, prompt)
        return out_LKQD.reshape(L, H, D).transpose(0, 1)

    def _attend_prompts(self, layer: int, query_LKQD: Tensor) -> tuple[Tensor, Tensor]:
        """Each prompt's keys against all its lanes at once, and the results back in the order of the lanes."""
        _, K, Q, D = query_LKQD.shape
        P, G = self._lanes_PG.shape
        query_PKMD = query_LKQD[self._lanes_PG].transpose(1, 2).reshape(P, K, G * Q, D)
        out, lse = _attend_part(query_PKMD, self._prompt_keys[layer], self._prompt_values[layer], self._hidden_P11S)
        out_lanes = out.reshape(P, K, G, Q, D).transpose(1, 2).reshape(P * G, K, Q, D)
        lse_lanes = lse.reshape(P, K, G, Q).transpose(1, 2).reshape(P * G, K, Q)
        return out_lanes[self._slot_L], lse_lanes[self._slot_L]

    def _regroup(self) -> None:
        """Index tables between lanes and [prompt, member]; empty places point at lane 0 and are never read."""
        device = self._hidden_P11S.device
        members: list[list[int]] = [[] for _ in self._hidden_P11S]
        for lane, prompt in enumerate(self._prompt_of_lane):
            members[prompt].append(lane)
        G = max(map(len, members))
        slots = [prompt * G + members[prompt].index(lane) for lane, prompt in enumerate(self._prompt_of_lane)]
        self._lanes_PG = torch.tensor([m + [0] * (G - len(m)) for m in members], dtype=torch.long, device=device)
        self._slot_L = torch.tensor(slots, dtype=torch.long, device=device)


def _room(like_PKSD: Tensor, lanes: int, max_new_tokens: int) -> Tensor:
    _, K, _, D = like_PKSD.shape
    return like_PKSD.new_empty(lanes, K, max_new_tokens, D)


def _copied(own_LKTD: Tensor, lanes: Tensor, steps: int) -> Tensor:
    """The own keys or values of these lanes; only ``steps`` tokens are filled yet."""
    new = _room(own_LKTD, len(lanes), own_LKTD.shape[2])
    new[:, :, :steps] = own_LKTD[:, :, :steps].index_select(0, lanes)
    return new


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
