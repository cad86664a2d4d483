# SPDX-License-Identifier: Apache-2.0
"""MXNet's optimizer objects as names and parameters for the servers."""
from __future__ import annotations

import json
import operator
import warnings
from typing import Any, Dict, List, Tuple

import mxnet as mx

# Class in mxnet.optimizer: name of the optimizer, and its parameters by
# attribute of the class.
_RULES: Dict[str, Tuple[str, Dict[str, str]]] = {
    "SGD": ("sgd", {"momentum": "momentum", "lazy_update": "lazy_update"}),
    "NAG": ("nag", {"momentum": "momentum"}),
    "Adam": ("adam", {"beta1": "beta1", "beta2": "beta2",
                      "epsilon": "epsilon", "lazy_update": "lazy_update"}),
    "AdaGrad": ("adagrad", {"float_stable_eps": "epsilon"}),
    "RMSProp": ("rmsprop", {"gamma1": "gamma1", "gamma2": "gamma2",
                            "epsilon": "epsilon", "centered": "centered",
                            "clip_weights": "clip_weights"}),
    "AdaDelta": ("adadelta", {"rho": "rho", "epsilon": "epsilon"}),
    "Ftrl": ("ftrl", {"lamda1": "lamda1", "beta": "beta"}),
    "Adamax": ("adamax", {"beta1": "beta1", "beta2": "beta2"}),
    "Nadam": ("nadam", {"beta1": "beta1", "beta2": "beta2",
                        "epsilon": "epsilon",
                        "schedule_decay": "schedule_decay"}),
    "FTML": ("ftml", {"beta1": "beta1", "beta2": "beta2",
                      "epsilon": "epsilon"}),
    "Signum": ("signum", {"momentum": "momentum", "wd_lh": "wd_lh"}),
    "DCASGD": ("dcasgd", {"momentum": "momentum", "lamda": "lamda"}),
    "LAMB": ("lamb", {"beta1": "beta1", "beta2": "beta2",
                      "epsilon": "epsilon", "lower_bound": "lower_bound",
                      "upper_bound": "upper_bound",
                      "bias_correction": "correct_bias"}),
    "LARS": ("lars", {"momentum": "momentum", "eta": "eta", "eps": "epsilon",
                      "momentum_correction": "momentum_correction"}),
    "SGLD": ("sgld", {}),
    "LBSGD": ("lbsgd", {"momentum": "momentum", "batch_scale": "batch_scale",
                        "warmup_strategy": "warmup_strategy",
                        "warmup_epochs": "warmup_epochs",
                        "updates_per_epoch": "updates_per_epoch",
                        "init_updates": "begin_epoch"}),
    # Of mxnet.optimizer.contrib.
    "GroupAdaGrad": ("groupadagrad", {"float_stable_eps": "epsilon"}),
    "Test": ("test", {}),
}
# Numbers of LBSGD's warm-ups.
_STRATEGIES = {"linear": 0, "power2": 1, "sqrt": 2, "lars": 3}
_WITHOUT_DECAY = {"groupadagrad", "test"}
_WITHOUT_RATE = {"adadelta", "test"}


def declaration(optimizer: Any) -> Tuple[str, Dict[str, float]]:
    """Name and parameters of an optimizer. TypeError: the servers have no
    optimizer of this class and run no code of workers, so it must run in
    the workers. ValueError: it uses features that the servers lack."""
    kind = type(optimizer)
    name = kind.__name__
    if name not in _RULES or kind not in (
            getattr(mx.optimizer, name, None),
            getattr(mx.optimizer.contrib, name, None)):
        raise TypeError(
            "servers do not know the optimizer %s.%s, and run no code of "
            "workers; they know %s. Any optimizer can run in the workers: "
            "update_on_kvstore=False, or MXNET_UPDATE_ON_KVSTORE=0" %
            (kind.__module__, name, ", ".join(sorted(_RULES))))
    rule, attributes = _RULES[name]
    numbers: Dict[str, float] = {
        "rescale_grad": float(optimizer.rescale_grad)}
    if rule == "sgld":
        numbers["seed"] = float(getattr(optimizer, "seed", 0))
    if rule == "nag":
        numbers["decay_after_step"] = 1.0  # As MXNet does.
    if rule not in _WITHOUT_DECAY:
        numbers["wd"] = float(optimizer.wd)
    elif rule != "test" and optimizer.wd != 0:
        raise ValueError("%s knows no weight decay" % name)
    if rule != "test" and optimizer.clip_gradient is not None:
        numbers["clip_gradient"] = float(optimizer.clip_gradient)
    if optimizer.begin_num_update != 0:
        numbers["begin_num_update"] = float(optimizer.begin_num_update)
    for attribute, parameter in attributes.items():
        value = getattr(optimizer, attribute)
        if attribute == "warmup_strategy":
            value = _strategy(value)
        elif attribute == "init_updates" and value != 0:
            value //= optimizer.updates_per_epoch
        if value is not None:
            numbers[parameter] = float(value)
    if rule not in _WITHOUT_RATE:
        if optimizer.lr_scheduler is None:
            numbers["learning_rate"] = float(optimizer.lr)
        else:
            numbers.update(_schedule(optimizer.lr_scheduler))
    return rule, numbers


def _strategy(name: str) -> int:
    if name not in _STRATEGIES:
        raise ValueError("LBSGD on servers warms up by %s, not %r" %
                         (", ".join(_STRATEGIES), name))
    return _STRATEGIES[name]


def _schedule(s: Any) -> Dict[str, float]:
    kind = type(s)
    numbers: Dict[str, float] = {}
    if kind is mx.lr_scheduler.FactorScheduler:
        rate = s.base_lr
        numbers.update(lr_scheduler=1, lr_scheduler_step=s.step,
                       lr_scheduler_factor=s.factor,
                       lr_scheduler_stop_lr=s.stop_factor_lr)
    elif kind is mx.lr_scheduler.MultiFactorScheduler:
        rate = s.base_lr
        if len(s.step) > 8:
            raise ValueError("a MultiFactorScheduler on servers has at most 8 "
                             "steps, this one has %d" % len(s.step))
        numbers.update(lr_scheduler=2, lr_scheduler_factor=s.factor)
        for i, step in enumerate(s.step):
            numbers["lr_scheduler_step_%d" % (i + 1)] = step
    elif kind is mx.lr_scheduler.PolyScheduler:
        rate = s.base_lr_orig
        numbers.update(lr_scheduler=3, lr_scheduler_power=s.power,
                       lr_scheduler_max_update=s.max_update,
                       lr_scheduler_final_lr=s.final_lr)
    elif kind is mx.lr_scheduler.CosineScheduler:
        rate = s.base_lr_orig
        numbers.update(lr_scheduler=4, lr_scheduler_max_update=s.max_update,
                       lr_scheduler_final_lr=s.final_lr)
    else:
        raise TypeError(
            "servers do not know the schedule %s.%s; they know Factor-, "
            "MultiFactor-, Poly- and CosineScheduler" %
            (kind.__module__, kind.__name__))
    if getattr(s, "count", 0) != 0:
        raise ValueError("the %s has been used before; give servers a new one"
                         % kind.__name__)
    if s.warmup_steps > 0:
        numbers["lr_scheduler_warmup_steps"] = s.warmup_steps
        numbers["lr_scheduler_warmup_begin_lr"] = s.warmup_begin_lr
        if s.warmup_mode == "constant":
            numbers["lr_scheduler_warmup_constant"] = 1
    numbers["learning_rate"] = float(rate)
    return {k: float(v) for k, v in numbers.items()}


# Parameters that servers change while a job runs.
CHANGES = ("learning_rate", "wd", "rescale_grad", "clip_gradient")

# Precedes the optimizer's numbers in a file of its state.
_MARK = b"\npskv.mxnet optimizer "


class Declared:
    """An optimizer as the servers have it, beside MXNet's object, which the
    script may change."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        _, attributes = _RULES[type(optimizer).__name__]
        self._read = operator.attrgetter(
            "lr", "wd", "rescale_grad", "clip_gradient", "lr_scheduler",
            *attributes)
        self._numbers: Dict[str, float] = {}
        self.given = declaration(optimizer)
        # Steps belong to whole rows: servers must have a key by rows.
        self.needs_rows = self.given[0] == "groupadagrad"
        self.tuned = multipliers(optimizer)
        self.accept()

    def is_by_rows(self, key: Any) -> bool:
        """True of a dense key that servers must have by rows, because a
        parameter of Gluon has gradients of rows, and the optimizer steps no
        others."""
        parameter = self._optimizer.param_dict.get(key)
        return self.needs_rows or bool(
            "lazy_update" in _RULES[type(self._optimizer).__name__][1] and
            self._optimizer.lazy_update and
            getattr(parameter, "_grad_stype", "default") == "row_sparse")

    def is_lazy(self) -> bool:
        """True if MXNet would step only the rows of a row_sparse gradient, and
        the others have steps, too: of a momentum, moments or decay."""
        return getattr(self._optimizer, "lazy_update", False) and not (
            self.given[0] == "sgd" and self._optimizer.momentum == 0 and
            self._optimizer.wd == 0)

    def accept(self) -> None:
        """The servers have the present state."""
        self._seen = self._state()
        self._numbers = declaration(self._optimizer)[1]
        self._multipliers = multipliers(self._optimizer)
        self._scheduler = self._optimizer.lr_scheduler

    def equals(self, other: "Declared") -> bool:
        """True if servers have the same from another declaration."""
        return (declaration(self._optimizer) == other.given and
                multipliers(self._optimizer) == other.tuned)

    def _state(self) -> Any:
        o = self._optimizer
        return (self._read(o), dict(o.lr_mult), dict(o.wd_mult),
                [(p.lr_mult, p.wd_mult) for p in o.param_dict.values()])

    def has_changed(self) -> bool:
        """True if the object is no longer as the servers have it."""
        return bool(self._state() != self._seen)

    def changes(self) -> Dict[str, float]:
        """New values of parameters. ValueError: something has changed that
        servers cannot change."""
        o = self._optimizer
        if o.lr_scheduler is not self._scheduler:
            raise ValueError("the schedule of an optimizer on servers cannot "
                             "change after set_optimizer()")
        numbers = dict(declaration(o)[1])
        numbers.setdefault("clip_gradient", 0.0)
        old = {"clip_gradient": 0.0, **self._numbers}
        changed = {k: v for k, v in numbers.items() if old.get(k) != v}
        for name in sorted(set(changed) - set(CHANGES)):
            raise ValueError(
                "%s of an optimizer on servers cannot change from %g to %g "
                "after set_optimizer(); what can is %s" %
                (name, old.get(name, 0), changed[name], ", ".join(CHANGES)))
        return changed

    def save(self, fname: Any) -> None:
        """Appends the numbers to a file of the servers' state."""
        o = self._optimizer
        text = json.dumps({"numbers": declaration(o)[1],
                           "lr_mult": list(o.lr_mult.items()),
                           "wd_mult": list(o.wd_mult.items())})
        with open(fname, "ab") as f:
            f.write(_MARK + text.encode() + b"\n")

    def load(self, fname: Any) -> None:
        """Gives the object the numbers of such a file that servers change, as
        MXNet's Trainer takes the optimizer of the file."""
        with open(fname, "rb") as f:
            _, mark, text = f.read().rpartition(_MARK)
        if not mark:
            return
        saved = json.loads(text)
        o = self._optimizer
        o.lr_mult, o.wd_mult = dict(saved["lr_mult"]), dict(saved["wd_mult"])
        now, then = declaration(o)[1], saved["numbers"]
        differ = {k for k in {*now, *then} if now.get(k) != then.get(k)}
        changes = set(CHANGES)
        if "lr_scheduler" in now or "lr_scheduler" in then:
            changes.discard("learning_rate")  # That of the schedule.
        for name in differ & changes:
            setattr(o, "lr" if name == "learning_rate" else name,
                    then.get(name))
        for name in sorted(differ - changes):
            warnings.warn(
                "%s has %s=%s; the optimizer on the servers keeps %s, as "
                "set_optimizer() has declared it" %
                (fname, name, then.get(name), now.get(name)))

    def unknown_multipliers(self, keys: Any) -> List[Tuple[str, Any]]:
        """Names of the optimizer's lr_mult and wd_mult that are none of `keys`
        or of a parameter."""
        o = self._optimizer
        known = {*keys, *o.idx2name, *o.idx2name.values()}.difference(
            o.param_dict)
        return [(what, name) for what in ("lr_mult", "wd_mult")
                for name, factor in getattr(o, what).items()
                if factor != 1 and name not in known]

    def has_parameters(self) -> bool:
        """True of the optimizer of a Trainer, whose parameters have factors of
        their own."""
        return bool(self._optimizer.param_dict)

    def changed_multipliers(self) -> Tuple[Dict[Any, float], Dict[Any, float]]:
        """New values of lr_mult and wd_mult, of the keys that have others."""
        lr, wd = (
            {key: now.get(key, 1.0) for key in {**now, **old}
             if now.get(key, 1.0) != old.get(key, 1.0)}
            for now, old in zip(multipliers(self._optimizer),
                                self._multipliers))
        return lr, wd


def multipliers(optimizer: Any) -> Tuple[Dict[Any, float], Dict[Any, float]]:
    """lr_mult and wd_mult other than 1: by index, as Gluon's Trainer numbers
    its keys, by name, as Module does, and by key, of a script that has a store
    only. As in MXNet, those of a parameter precede those of its index, and
    these those of its name. A key may be initialised later."""
    lr: Dict[Any, float] = dict(optimizer.lr_mult)
    wd: Dict[Any, float] = dict(optimizer.wd_mult)
    for index, name in optimizer.idx2name.items():
        lr[index] = lr[name] = optimizer.lr_mult.get(
            index, optimizer.lr_mult.get(name, 1.0))
        wd[index] = wd[name] = optimizer.wd_mult.get(
            index, optimizer.wd_mult.get(name, 1.0))
    for index, parameter in optimizer.param_dict.items():
        lr[index] = parameter.lr_mult
        wd[index] = parameter.wd_mult
    return ({k: float(v) for k, v in lr.items() if v != 1},
            {k: float(v) for k, v in wd.items() if v != 1})
