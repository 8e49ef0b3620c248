# SPDX-License-Identifier: Apache-2.0
"""Scale, params and seed as tensors that the run reads where q lies (call_on_device): what calls on a device are given, tried
on the host, whose engines read them too. tests/device/python/torch_cuda.py has them on a GPU."""
import pytest

torch = pytest.importorskip("torch")
from fxattn import Program, _abi  # noqa: E402
from fxattn.torch import operators as ops  # noqa: E402
from fxattn.torch import attention, settings  # noqa: E402
from fxattn.torch.call import Call, call_on_device, has_scalars_on_device  # noqa: E402
from fxattn.torch.route import run  # noqa: E402
from fxattn.torch.score_arguments import with_bprop  # noqa: E402
from fxattn.trace import Traced  # noqa: E402

TEXT = "param cap : float\nparam shift : int\nscore = cap * tanh((score + shift) / cap)\n"
HOST = torch.device("cpu")


def arrays(n=3):
    return [torch.randn(2, 4, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def program(text=TEXT, kind="score"):
    return Program.from_text(text, kind=kind).text


def test_params_and_scale_are_those_given():
    q, k, v = arrays()
    for cap, shift, scale in ((2.0, 1, 0.3), (0.5, -2, None)):
        call = call_on_device(program(), (), scale, [torch.tensor(cap), torch.tensor(shift)], (_abi.CAUSAL,), 0.0, (), HOST)
        assert call.flags() & _abi.SCALARS_IN_MEMORY and call.scalars[0].dtype == torch.float64
        want = attention(q, k, v, TEXT, params={"cap": cap, "shift": shift}, scale=scale, is_causal=True)
        assert torch.equal(run(call, q, k, v)[0], want)


def test_they_are_read_when_the_call_runs():
    q, k, v = arrays()
    call = call_on_device(program(), (), 0.3, [2.0, 1], (0,), 0.0, (), HOST)
    call.scalars[0].copy_(torch.tensor([0.5, 3.0]))
    call.extras[0].fill_(0.7)
    want = attention(q, k, v, TEXT, params={"cap": 0.5, "shift": 3}, scale=0.7)
    assert torch.equal(run(call, q, k, v)[0], want)


def test_gradients_of_params():
    q, k, v = arrays()
    cap, other = torch.tensor(2.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    call = call_on_device(program(), (), None, [cap, 1], (0,), 0.0, (), HOST)
    out = run(call, q, k, v)[0]
    want = attention(q, k, v, TEXT, params={"cap": other, "shift": 1})
    assert torch.equal(torch.autograd.grad(out.sin().sum(), cap)[0], torch.autograd.grad(want.sin().sum(), other)[0])


def test_the_seed():
    q, k, v = arrays()
    config = (_abi.DROPOUT, 1 << _abi.SLOT_SEED)
    for seed in (5, -7):
        call = call_on_device(program(), (), 0.3, [2.0, 1], config, 0.5, [torch.tensor([seed])], HOST)
        slots = call.config[ops.SLOTS]
        assert [s for s in range(64) if slots >> s & 1] == [_abi.SLOT_SCALE, _abi.SLOT_SEED]
        want = attention(q, k, v, TEXT, params={"cap": 2.0, "shift": 1}, scale=0.3, dropout_p=0.5, seed=seed)
        assert torch.equal(run(call, q, k, v)[0], want)


def test_params_of_a_backward_program_stay_numbers():
    q, k, v = (x.requires_grad_() for x in arrays())
    back = "param slope : float\ndscore = slope * dscore\n"
    call = call_on_device(program("score = score * 2\n"), (), 0.3, (), (0,), 0.0, (), HOST)
    traced = Traced(Program.from_text("score = score * 2\n"), bprop=Program.from_text(back, kind="bprop"),
                    bprop_params=(2.0,), bprop_tensors=())
    out = run(with_bprop(call, traced), q, k, v)[0]
    plain = attention(q, k, v, "score = score * 2", scale=0.3)
    got, want = (torch.autograd.grad(x.sum(), (q, k)) for x in (out, plain))
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(got, want))


def test_what_is_refused():
    q, k, v = arrays()
    good = call_on_device(program(), (), 0.3, [2.0, 1], (0,), 0.0, (), HOST)

    def run_changed(**change):
        fields = {name: getattr(good, name) for name in Call.__slots__}
        fields.update(change)
        return run(Call(**fields), q, k, v)
    with pytest.raises(RuntimeError, match="dense tensor of 2 elements of f64"):
        run_changed(scalars=[torch.ones(3, dtype=torch.float64)])
    with pytest.raises(RuntimeError, match="dense tensor of 2 elements of f64"):
        run_changed(scalars=[torch.ones(2)])
    with pytest.raises(RuntimeError, match="dense tensor of 2 elements of f64"):
        run_changed(scalars=())
    with pytest.raises(RuntimeError, match="SCALE has 1 elements of f32"):
        run_changed(extras=[torch.ones(1)])
    with pytest.raises(RuntimeError, match="SCALE is no slot"):
        run_changed(config=[0, 1 << _abi.SLOT_SCALE])


def test_numbers_of_the_host_are_not_there():
    assert not has_scalars_on_device(torch.tensor(0.5), [torch.tensor(1.0), 2], (0,), ())
    assert has_scalars_on_device(None, [torch.empty((), device="meta")], (0,), ())
    assert has_scalars_on_device(None, (), (0, 1 << _abi.SLOT_SEED), [torch.empty(1, device="meta")])


def test_the_longest_sequence_is_not_asked_for_while_a_graph_is_recorded(monkeypatch):
    offsets = torch.tensor([0, 3, 5])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert settings._longest("max_q", offsets) == 3  # of the host
    with pytest.raises(ValueError, match="max_q is not given"):
        settings._longest("max_q", offsets.to("meta"))
