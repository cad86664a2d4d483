# SPDX-License-Identifier: Apache-2.0
"""A rank of test_torch2.py: torch2_clients.py CLIENT BACKEND FILE. Trains by a
library above torch.distributed and writes the weights, as text."""
import json
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

CLIENT, BACKEND, FILE = sys.argv[1:]
if BACKEND == "pskv":
    import pskv.torch  # noqa: F401  pylint: disable=unused-import


class Net(nn.Module):
    """Also a model of transformers: forward() gives the loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3 + dist.get_rank())  # Rank 0 has the weights.
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(),
                                    nn.Linear(8, 2))

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels),
                "logits": logits}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        x = torch.randn(4, generator=torch.Generator().manual_seed(i))
        return {"x": x, "labels": (x.sum() > 0).long()}


def with_accelerate():
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list, gather_object, reduce
    accelerator = Accelerator(cpu=True)
    n, r = dist.get_world_size(), dist.get_rank()
    assert (accelerator.num_processes, accelerator.process_index) == (n, r)
    loader = torch.utils.data.DataLoader(Data(), batch_size=4)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    seen = [batch["labels"] for batch in loader]
    every = [accelerator.gather_for_metrics(labels) for labels in seen]
    assert sum(len(e) for e in every) == len(Data())
    assert gather_object([r]) == list(range(n))
    assert broadcast_object_list([r]) == [0]
    total = reduce(torch.ones(2) * (r + 1), "sum")
    assert total.tolist() == [n * (n + 1) / 2] * 2, total
    padded = accelerator.pad_across_processes(torch.ones(r + 1))
    assert len(padded) == n
    return accelerator.unwrap_model(model)


def with_transformers():
    from transformers import Trainer, TrainingArguments
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=Net(), train_dataset=Data(), eval_dataset=Data(),
            args=TrainingArguments(
                output_dir=folder, use_cpu=True, report_to=[], seed=3,
                per_device_train_batch_size=4, num_train_epochs=2,
                learning_rate=0.05, save_strategy="no", disable_tqdm=True))
        assert trainer.args.world_size == dist.get_world_size()
        trainer.train()
        trainer.evaluate()
    return trainer.model


def main():
    dist.init_process_group(BACKEND)
    model = globals()["with_" + CLIENT]()
    with open(f"{FILE}.{BACKEND}.{dist.get_rank()}", "w",
              encoding="ascii") as f:
        json.dump([p.tolist() for p in model.parameters()], f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
