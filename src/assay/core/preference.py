"""The loss on preference pairs: of two completions of one prompt, which one is to be likelier.

DPO: Rafailov et al. 2023, arXiv 2305.18290, eq. 7. A log-prob here is of a whole completion: the sum over its
tokens, end token included, in nats.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def implicit_reward(logprobs: Tensor, ref_logprobs: Tensor, *, beta: float) -> Tensor:
    """beta (log pi(y|x) - log pi_ref(y|x)): the reward for which the policy is optimal (eq. 5); shapes broadcast.

    The paper's beta log Z(x) is left out: it is the same for all completions of a prompt.
    """
    return beta * (logprobs - ref_logprobs)


def dpo(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
) -> Tensor:
    """-log sigmoid(reward of the chosen - reward of the rejected) per pair, with implicit rewards; shapes broadcast."""
    chosen = implicit_reward(chosen_logprobs, ref_chosen_logprobs, beta=beta)
    rejected = implicit_reward(rejected_logprobs, ref_rejected_logprobs, beta=beta)
    return -logsigmoid(chosen - rejected)
