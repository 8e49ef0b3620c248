# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fxattn" in every architecture of transformers, against eager attention.

    hf_walk.py OUT.json [--only NAME,...] [--seconds 90] [--resume]

Each architecture is run in a process of its own, which may take so many seconds of CPU and 6 GiB. Stages: making the model,
forward, gradients of all parameters, generate() with a dynamic and with a static cache. Outcomes of a stage: "equal",
"as sdpa" (equal to SDPA, from which the model's eager attention differs as much), "wrong", "crash", "refused" (an error of fxattn's by name), "no call" (no attention was computed by fxattn), "-" (eager
attention itself does not run, or the stage is not for this model)."""
import argparse
import copy
import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
import transformers
from torch import Tensor

import hf_configs
import fxattn.torch as fx
from fxattn import Error

MEMORY = 6 << 30
STAGES = ("forward", "gradients", "dynamic", "static")
calls = 0  # of fxattn's attention


def count_calls() -> None:
    ours = fx.transformers.attention

    def counted(*args: Any, **kwargs: Any) -> Any:
        global calls
        calls += 1
        return ours(*args, **kwargs)

    fx.transformers.attention = counted


def floats(output: Any, path: str = "") -> Iterator[Tuple[str, Tensor]]:
    """The tensors of floats in what a model returned, by their places; caches and attention weights are left out."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield path, output
    elif isinstance(output, dict):
        for name, value in output.items():
            if "attentions" not in str(name) and "past_key_values" not in str(name):
                yield from floats(value, "%s.%s" % (path, name))
    elif isinstance(output, (list, tuple)):
        for i, value in enumerate(output):
            yield from floats(value, "%s.%d" % (path, i))


def perturbed(model: Any) -> Any:
    """A copy whose parameters are moved by 2^-20 of their size: how it differs is how far rounding can carry."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.is_floating_point():
                parameter.mul_(1 + torch.randn(parameter.shape, generator=generator) * 2.0 ** -20)
    return other


def step(model: Any, inputs: Dict[str, Any], gradients: bool) -> List[Tuple[str, Tensor]]:
    torch.manual_seed(4)
    outputs = dict(floats(model(**inputs)))
    if not gradients:
        return [(name, x.detach()) for name, x in outputs.items()]
    loss, generator = torch.zeros(()), torch.Generator().manual_seed(6)
    for x in outputs.values():
        if x.requires_grad and bool(x.isfinite().all()):
            loss = loss + (x * torch.randn(x.shape, generator=generator) / (x.numel() ** 0.5)).sum()
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    return [(name, g) for (name, _), g in zip(named, grads) if g is not None]


def rows_without_keys_are_zero() -> None:
    """Eager attention makes an average of all keys for rows that attend to nothing; the oracle is 0, as SDPA's and ours."""
    softmax = torch.nn.functional.softmax

    def oracle(x: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        made = softmax(x, dim, *args, **kwargs)
        if x.dim() != 4 or dim not in (-1, 3) or not x.is_floating_point():
            return made
        return made.masked_fill((x <= torch.finfo(x.dtype).min / 2).all(-1, keepdim=True), 0.0)

    torch.nn.functional.softmax = oracle


def compare(ours: List[Tuple[str, Tensor]], eager: List[Tuple[str, Tensor]], moved: List[Tuple[str, Tensor]]) -> str:
    """"" or what is wrong. A tensor may differ by 16 times what rounding carries, and 16 units in the last place of its
    largest element."""
    names = [name for name, _ in eager]
    if [name for name, _ in ours] != names:
        return "other outputs: %s, eager %s" % ([n for n, _ in ours][:8], names[:8])
    far = dict(moved)
    for (name, a), (_, b) in zip(ours, eager):
        if a.shape != b.shape:
            return "%s has shape %s, eager %s" % (name, tuple(a.shape), tuple(b.shape))
        finite = b.isfinite()
        if not bool((a.isfinite() == finite).all()):
            return "%s has other infinities" % name
        if not bool(finite.any()):
            continue
        size = b[finite].abs().max().item()
        noise = (far[name][finite] - b[finite]).abs().nan_to_num(0.0).max().item() if far[name].shape == b.shape else 0.0
        apart, most = (a[finite] - b[finite]).abs().max().item(), 16 * noise + 2.0 ** -19 * size + 1e-30
        if apart > most:
            return "%s is off by %.3g of %.3g (bar %.3g)" % (name, apart, size, most)
    return ""


def generate(model: Any, inputs: Dict[str, Any], cache: str) -> List[Tuple[str, Tensor]]:
    torch.manual_seed(4)
    kept = {name: x for name, x in inputs.items() if not name.startswith("decoder_")}
    if getattr(model.config, "is_encoder_decoder", False) and model.generation_config.decoder_start_token_id is None:
        model.generation_config.decoder_start_token_id = 1
    more = {"cache_implementation": "static"} if cache == "static" else {}
    made = model.generate(**kept, max_new_tokens=4, min_new_tokens=4, do_sample=False, num_beams=1, pad_token_id=0,
                          return_dict_in_generate=True, output_logits=True, disable_compile=True, **more)
    return [("tokens", made.sequences.float()), *(("logits %d" % i, x) for i, x in enumerate(made.logits))]


def reason(error: BaseException) -> str:
    place = traceback.extract_tb(error.__traceback__)
    where = next((f for f in reversed(place) if "/transformers/models/" in f.filename), place[-1] if place else None)
    text = " ".join(str(error).split())[:140]
    return "%s: %s%s" % (type(error).__name__, text, "" if where is None else " (%s:%d)"
                         % (os.path.basename(where.filename), where.lineno or 0))


def is_refusal(error: BaseException) -> bool:
    return isinstance(error, Error) and "fxattn" in str(error)


def try_stage(run: Callable[[Any], List[Tuple[str, Tensor]]], models: Dict[str, Any]) -> Tuple[str, str]:
    global calls
    try:
        eager = run(models["eager"])
        moved = run(models["moved"])
    except Exception as error:
        return "-", "eager: " + reason(error)
    if not eager:
        return "-", "nothing to compare"
    calls = 0
    try:
        ours = run(models["fxattn"])
    except Exception as error:
        return ("refused" if is_refusal(error) else "crash"), reason(error)
    difference = compare(ours, eager, moved)
    if difference and "sdpa" in models:  # some models read the mask of eager attention another way than SDPA's
        try:
            if not compare(ours, run(models["sdpa"]), moved):
                return "as sdpa", "eager: " + difference
        except Exception:
            pass
    return ("wrong" if difference else "equal" if calls else "no call"), difference


def examine(kind: str, name: str) -> Dict[str, Any]:
    """All stages of one architecture."""
    found: Dict[str, Any] = {"class": name}
    try:
        models = {"eager": hf_configs.small_model(kind, name, "eager")}
    except Exception as error:
        return {**found, "made": "not built", "why": reason(error)}
    try:
        models["sdpa"] = hf_configs.small_model(kind, name, "sdpa")
        found["sdpa"] = True
    except Exception:
        found["sdpa"] = False
    try:
        models["fxattn"] = hf_configs.small_model(kind, name, "fxattn")
    except Exception as error:
        return {**found, "made": "refused" if is_refusal(error) else "crash", "why": reason(error)}
    found["made"] = "made"
    models["moved"] = perturbed(models["eager"])
    inputs = hf_configs.inputs_of(kind, models["eager"])
    why: Dict[str, str] = {}
    for stage in ("forward", "gradients"):
        found[stage], text = try_stage(lambda model: step(model, inputs, stage == "gradients"), models)
        if text:
            why[stage] = text
        if found[stage] == "-":
            break
    if models["eager"].can_generate() and hasattr(models["eager"], "generate"):
        inputs = hf_configs.inputs_of(kind, models["eager"], padded="left")
        for stage in ("dynamic", "static"):
            with torch.no_grad():
                found[stage], text = try_stage(lambda model: generate(model, inputs, stage), models)
            if text:
                why[stage] = text
    return {**found, "why": why} if why else found


def in_a_process(kind: str, name: str, seconds: float) -> Dict[str, Any]:
    """What examine() returns, from a fork that may end badly."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
            signal.alarm(20 * int(seconds))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            if not os.environ.get("HF_WALK_LOUD"):
                os.dup2(quiet, 2)
            torch.set_num_threads(1)
            result = examine(kind, name)
            os.write(write, json.dumps(result).encode()[:60000])
        except BaseException as error:
            os.write(write, json.dumps({"class": name, "made": "not built", "why": reason(error)}).encode()[:60000])
        finally:
            os._exit(0)
    os.close(write)
    text = b""
    while True:
        part = os.read(read, 65536)
        if not part:
            break
        text += part
    os.close(read)
    status = os.waitpid(child, 0)[1]
    if not text:
        number = os.WTERMSIG(status)
        late = number in (signal.SIGALRM, signal.SIGXCPU)
        what = "took more than %d s" % seconds if late else "ended by signal %d" % number
        return {"class": name, "made": "not run" if late else "crash", "why": what}
    return json.loads(text)


def text_of(results: Dict[str, Any]) -> str:
    """Returns the results as JSON with one architecture per line."""
    rows = ["  %s: %s" % (json.dumps(kind), json.dumps(outcome)) for kind, outcome in results["outcomes"].items()]
    head = [" %s: %s,\n" % (json.dumps(name), json.dumps(value)) for name, value in results.items() if name != "outcomes"]
    return "{\n%s \"outcomes\": {\n%s\n }\n}\n" % ("".join(head), ",\n".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    faulthandler.disable()
    fx.register_transformers()
    count_calls()
    rows_without_keys_are_zero()
    found: Dict[str, Any] = {}
    if options.resume and os.path.exists(options.out):
        with open(options.out) as file:
            found = json.load(file)["outcomes"]
    every = hf_configs.architectures()
    only = options.only.split(",") if options.only else list(every)
    for i, kind in enumerate(only):
        if options.resume and kind in found:
            continue
        start = time.monotonic()
        found[kind] = in_a_process(kind, every[kind], options.seconds)
        print("%d/%d %s %.1f s %s" % (i + 1, len(only), kind, time.monotonic() - start, json.dumps(found[kind])[:400]), flush=True)
        with open(options.out + ".part", "w") as file:
            file.write(text_of({"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
                                "registered": len(every), "outcomes": dict(sorted(found.items()))}))
        os.replace(options.out + ".part", options.out)


if __name__ == "__main__":
    main()
