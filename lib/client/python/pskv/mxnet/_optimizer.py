# SPDX-License-Identifier: Apache-2.0
"""MXNet's optimizer objects as names and parameters for the servers."""
from __future__ import annotations

from typing import Any, Dict, Tuple

import mxnet as mx

# Class in mxnet.optimizer: name of the optimizer, and its parameters by
# attribute of the class.
_RULES: Dict[str, Tuple[str, Dict[str, str]]] = {
    "SGD": ("sgd", {"momentum": "momentum"}),
    "NAG": ("nag", {"momentum": "momentum"}),
    "Adam": ("adam", {"beta1": "beta1", "beta2": "beta2",
                      "epsilon": "epsilon"}),
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
    # Of mxnet.optimizer.contrib, for rows keys.
    "GroupAdaGrad": ("groupadagrad", {"float_stable_eps": "epsilon"}),
    "Test": ("test", {}),
}
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
        if value is not None:
            numbers[parameter] = float(value)
    if rule not in _WITHOUT_RATE:
        if optimizer.lr_scheduler is None:
            numbers["learning_rate"] = float(optimizer.lr)
        else:
            numbers.update(_schedule(optimizer.lr_scheduler))
    return rule, numbers


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


def multipliers(optimizer: Any) -> Tuple[Dict[Any, float], Dict[Any, float]]:
    """lr_mult and wd_mult other than 1: by index, as Gluon's Trainer numbers
    its keys, and by name, as Module does."""
    lr: Dict[Any, float] = {}
    wd: Dict[Any, float] = {}
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
