"""A method of your own: experience replay whose loss weighs samples less that are nearly right (focal loss).

budgeted run --method examples/focal.py:Focal --set method.gamma=1
budgeted check examples/focal.py:Focal
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import log_softmax

from budgeted.methods import Method, Step


@dataclass
class Focal(Method):
    """ER with a focal loss"""

    selection: str = "reservoir"
    stream_share: float = 0.5
    gamma: float = 2.0
    """how much less a sample weighs that is nearly right"""

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        of_label = log_softmax(logits, 1).gather(1, step.labels[:, None])[:, 0]
        return (-((1 - of_label.exp()) ** self.gamma) * of_label).mean()
