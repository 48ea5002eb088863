"""Options of the workload: fp8, kernels of attention, dropout, dtypes of gradients."""

import pytest
from tiny import cluster, gpt, llama

import autoplan
from autoplan.errors import InputError


def test_fp8_is_faster_where_it_exists():
    model = llama(hidden=4096, heads=32, ffn=14336)
    how = {"tp": 2, "micro_batch_size": 1, "global_batch_size": 8}
    fp8, bf16 = (autoplan.estimate(model, cluster("dgx-h100:2"), precision=one, **how) for one in ("fp8", "bf16"))
    assert fp8.predicted.iteration_time_s < 0.85 * bf16.predicted.iteration_time_s
    assert fp8.predicted.peak_memory_bytes == bf16.predicted.peak_memory_bytes  # weights and tensors are kept in bf16
    assert fp8.workload.grad_dtype.value == "bf16"
    with pytest.raises(InputError, match="doesn't support it") as caught:
        autoplan.estimate(model, cluster("dgx-a100-80gb:2"), precision="fp8", **how)
    assert caught.value.key == "precision" and "bf16" in caught.value.allowed


def test_kernels_of_attention_and_dropout_cost_what_they_should():
    how = {"micro_batch_size": 2, "global_batch_size": 2, "seq_len": 2048}
    kernels, one = ("flash", "fused_softmax", "unfused"), cluster("dgx-h100:1")
    found = {(kernel, dropout): autoplan.estimate(llama(), one, attention=kernel, dropout=dropout, **how)
             for kernel in kernels for dropout in (False, True)}
    for dropout in (False, True):
        seconds = [found[kernel, dropout].predicted.iteration_time_s for kernel in kernels]
        assert seconds == sorted(seconds) and seconds[0] < seconds[1]
    for kernel in kernels:
        without, masked = (found[kernel, dropout].predicted for dropout in (False, True))
        assert masked.peak_memory_bytes > without.peak_memory_bytes
        assert masked.iteration_time_s > without.iteration_time_s
    assert autoplan.estimate(llama(), one, **how).workload.attention.value == "flash"


def test_gradients_that_travel_in_fewer_bytes_are_faster():
    how = {"dp": 8, "micro_batch_size": 1, "global_batch_size": 8, "grad_dtype": "fp32"}
    wide, narrow = (autoplan.estimate(gpt(), cluster("dgx-h100:8"), reduce_dtype=one, **how) for one in (None, "bf16"))
    assert wide.workload.reduce_dtype.value == "fp32" and narrow.workload.reduce_dtype.value == "bf16"
    assert narrow.predicted.breakdown.gradient_sync_s < wide.predicted.breakdown.gradient_sync_s


@pytest.mark.parametrize(("options", "key"), [
    ({"attention": "flash3"}, "attention"), ({"dropout": 0.1}, "dropout"), ({"reduce_dtype": "int8"}, "reduce_dtype"),
    ({"grad_dtype": "fp8"}, "grad_dtype"), ({"runtime": "megatron"}, "runtime"),
])
def test_options_that_do_not_exist(options, key):
    with pytest.raises(InputError) as caught:
        autoplan.plan(gpt(), cluster("dgx-h100:2"), global_batch_size=16, **options)
    assert caught.value.key == key and "\n" not in str(caught.value)


def test_fused_attention_needs_a_device_that_has_it():
    with pytest.raises(InputError, match="no fused attention") as caught:
        autoplan.plan(gpt(), cluster("dgx1-v100-16gb:2"), global_batch_size=16, attention="flash")
    assert caught.value.key == "attention"


def test_frozen_weights_have_no_gradients_and_no_state():
    how = {"dp": 4, "micro_batch_size": 1, "global_batch_size": 8, "recompute": "full", "zero": 1}
    trained, frozen = (autoplan.estimate(llama(), cluster("dgx-h100:4"), frozen=flag, **how) for flag in (False, True))
    assert frozen.workload.frozen
    before, after = (plan.predicted.breakdown for plan in (trained, frozen))
    assert after.gradient_sync_s == after.optimizer_s == 0 < before.gradient_sync_s
    assert after.forward_s == before.forward_s
    assert after.forward_s < after.backward_s < before.backward_s
    assert frozen.stages[0].memory.breakdown.gradients == frozen.stages[0].memory.breakdown.optimizer == 0
    assert frozen.stages[0].memory.breakdown.weights == trained.stages[0].memory.breakdown.weights
    assert frozen.predicted.physical_limit_s == pytest.approx(trained.predicted.physical_limit_s * 2 / 3)


def test_images_have_one_length():
    how = {"dp": 8, "micro_batch_size": 1, "global_batch_size": 16}
    for name, length in (("wide-resnet-250m", 1), ("vit-l-16", 197)):
        with pytest.raises(InputError, match="one length") as caught:
            autoplan.estimate(name, cluster("dgx-h100:8"), seq_len=1000, **how)
        assert caught.value.key == "seq_len" and caught.value.allowed == str(length)
        assert autoplan.estimate(name, cluster("dgx-h100:8"), seq_len=length, **how).workload.seq_len == length


def test_a_tp_that_the_key_and_value_heads_refuse_is_told():
    how = {"micro_batch_size": 1, "global_batch_size": 8}
    model = llama(heads=40, kv_heads=10, hidden=2560)
    with pytest.raises(InputError, match="10 key and value heads") as caught:
        autoplan.estimate(model, cluster("dgx-h100:4"), tp=4, **how)
    assert caught.value.key == "tp" and caught.value.found == 4
    assert autoplan.estimate(model, cluster("dgx-h100:2"), tp=2, **how).parallelism
