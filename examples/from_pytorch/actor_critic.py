"""An actor and a critic learn to balance a pole on a cart (Barto, Sutton and Anderson, 1983)."""

import torch
from torch import nn

CARTS, SPAN = 32, 16


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 64)
        self.actor = nn.Linear(64, 2)
        self.critic = nn.Linear(64, 1)

    def forward(self, x):
        h = torch.relu(self.hidden(x))
        return self.actor(h).log_softmax(-1), self.critic(h).squeeze(-1)


def moved(state, action):
    """State [B, 4]: place, speed, angle, its speed. Action [B]: 0 pushes left, 1 right."""
    _, v, a, w = state.unbind(1)
    force = 20.0 * action - 10
    push = (force + 0.05 * w.square() * a.sin()) / 1.1
    turn = (9.8 * a.sin() - a.cos() * push) / (0.5 * (4 / 3 - 0.1 / 1.1 * a.cos().square()))
    return state + 0.02 * torch.stack([v, push - 0.05 / 1.1 * turn * a.cos(), w, turn], 1)


def fallen(state):
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.21)


def start():
    return torch.rand(CARTS, 4) * 0.1 - 0.05


torch.manual_seed(1)
model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
state, falls = start(), 0
for update in range(400):
    chosen, values, alive = [], [], []
    for i in range(SPAN):
        scores, value = model(state)
        action = (torch.rand(CARTS) < scores.detach()[:, 1].exp()).long()
        chosen.append(scores.gather(1, action.unsqueeze(1)).squeeze(1))
        values.append(value)
        state = moved(state, action)
        down = fallen(state)
        alive.append((~down).float())
        state = torch.where(down.unsqueeze(1), start(), state)
        if update >= 350:
            falls += down.sum().item()
    future, loss = model(state)[1].detach(), 0
    for i in reversed(range(SPAN)):
        future = alive[i] * (1 + 0.98 * future)
        advantage = future - values[i]
        loss = loss + (advantage.square() * 0.5 - chosen[i] * advantage.detach()).mean()
    optimizer.zero_grad()
    (loss / SPAN).backward()
    optimizer.step()
print(f"{50 * SPAN * CARTS / (1 + falls):.0f} steps without a fall")
