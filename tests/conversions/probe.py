"""Asks mapping_probe where the elements of an expression come from, and gathers them from real tensors."""

import json
import subprocess


class Refused(Exception):
    """The expression was refused, with these messages."""


class Probe:
    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=10)

    def ask(self, expression, shapes, target=None):
        question = {
            "expression": expression,
            "shapes": [{"key": key, "shape": list(shape)} for key, shape in shapes.items()],
        }
        if target is not None:
            question["target"] = list(target)
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "mapping_probe ended"
        answer = json.loads(line)
        if "errors" in answer:
            raise Refused("\n".join(answer["errors"]))
        return answer

    def evaluate(self, expression, tensors, target=None):
        """The tensor that the expression makes of `tensors` (by key): every element is fetched by its index."""
        import torch

        answer = self.ask(expression, {key: tensor.shape for key, tensor in tensors.items()}, target)
        flat = [tensor.contiguous().flatten() for tensor in tensors.values()]
        begins = [0]
        for tensor in flat:
            begins.append(begins[-1] + tensor.numel())
        indices = [begins[source] + index for source, index in zip(answer["source"], answer["flat"])]
        return torch.cat(flat)[torch.tensor(indices, dtype=torch.long)].reshape(answer["shape"])
