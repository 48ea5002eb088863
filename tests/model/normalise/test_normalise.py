"""Traces as front ends make them: what becomes of fused projections, written-out functions, small tables and cuts."""

import pytest

from autoplan.errors import InputError
from autoplan.model.graph import ModelGraph
from autoplan.model.normalise import normalise
from autoplan.model.normalise.trace import Kind, Source, Trace

BATCH, SEQ, HIDDEN, HEAD = 2, 8, 48, 4


class Sketch:
    """A trace that begins with an embedding, and says it is done with a loss over its vocabulary."""

    def __init__(self) -> None:
        self.trace = Trace("sketch")
        tokens = self.trace.value("tokens", (BATCH, SEQ), Source.TOKENS)
        table = self.weight(100, HIDDEN)
        self.x = self.trace.add(Kind.GATHER, "embedding", (table, tokens), (BATCH, SEQ, HIDDEN))

    def weight(self, *shape: int) -> str:
        return self.trace.value(f"w{len(self.trace.values)}", shape, Source.PARAM)

    def dense(self, x: str, out: int) -> str:
        return self.trace.matmul(x, self.weight(self.trace.shape(x)[-1], out))

    def heads(self, x: str) -> str:
        batch, seq, width = self.trace.shape(x)
        return self.trace.permute(self.trace.view(x, (batch, seq, width // HEAD, HEAD)), (0, 2, 1, 3))

    def done(self, x: str) -> ModelGraph:
        self.trace.outputs = [self.dense(x, 100)]
        return normalise(self.trace, "sketch", "test")


def operators(graph: ModelGraph, kind: str):
    return [op for index in graph.layers for op in graph.classes[index].ops if op.kind == kind]


def test_a_fused_projection_of_unequal_parts_becomes_three():
    s = Sketch()
    fused = s.dense(s.x, 48 + 8 + 8)  # 12 query heads, 2 key and 2 value heads
    q, k, v = (s.trace.slice(fused, 2, start, size) for start, size in ((0, 48), (48, 8), (56, 8)))
    k, v = (s.trace.broadcast(s.trace.view(s.heads(part), (BATCH, 2, 1, SEQ, HEAD)), (BATCH, 2, 6, SEQ, HEAD), range(5))
            for part in (k, v))
    k, v = (s.trace.view(part, (BATCH, 12, SEQ, HEAD)) for part in (k, v))
    mixed = s.trace.add(Kind.ATTENTION, "attention", (s.heads(q), k, v), (BATCH, 12, SEQ, HEAD), causal=True)
    out = s.trace.view(s.trace.permute(mixed, (0, 2, 1, 3)), (BATCH, SEQ, HIDDEN))
    graph = s.done(s.trace.map("add", (s.x, s.dense(out, HIDDEN))))
    widths = [op.output.dims[2:] for op in operators(graph, "contraction")]
    assert widths == [("heads", "head_dim"), *[("kv_heads", "head_dim")] * 2, ("hidden",), ("vocab",)]
    (attention,) = operators(graph, "attention")
    assert (attention.static_sizes["heads"], attention.attr("kv_heads")) == (12, 2)
    assert graph.num_params == HIDDEN * (100 + 64 + 48 + 100)


def test_parts_interleaved_by_head_become_three_too():
    s = Sketch()
    fused = s.trace.view(s.dense(s.x, 3 * HIDDEN), (BATCH, SEQ, 12, 3, HEAD))  # as GPT-NeoX and BLOOM lay them out
    q, k, v = (s.trace.permute(s.trace.view(s.trace.slice(fused, 3, part, 1), (BATCH, SEQ, 12, HEAD)), (0, 2, 1, 3))
               for part in range(3))
    mixed = s.trace.add(Kind.ATTENTION, "attention", (q, k, v), (BATCH, 12, SEQ, HEAD), causal=False)
    out = s.trace.view(s.trace.permute(mixed, (0, 2, 1, 3)), (BATCH, SEQ, HIDDEN))
    graph = s.done(s.trace.map("add", (s.x, s.dense(out, HIDDEN))))
    assert [op.static_sizes for op in operators(graph, "contraction")[:3]] == [
        {"hidden": 48, name: 12, "head_dim": 4} for name in ("heads", "kv_heads", "kv_heads")]


def test_halves_that_are_joined_again_stay_one_projection():
    s = Sketch()
    width = s.dense(s.x, HIDDEN)
    halves = [s.trace.slice(width, 2, start, HIDDEN // 2) for start in (0, HIDDEN // 2)]
    turned = s.trace.concat([s.trace.map("neg", (halves[1],)), halves[0]], 2)
    graph = s.done(s.trace.map("add", (s.x, turned)))
    assert len(operators(graph, "contraction")) == 2
    assert operators(graph, "elementwise")[0].attr("function") == "rotary"


@pytest.mark.parametrize("centred", [False, True])
def test_a_written_out_norm_is_one_operator_with_its_gain(centred):
    s = Sketch()
    x = s.trace.map("sub", (s.x, s.trace.reduce("mean", s.x, [2], keep=True))) if centred else s.x
    mean = s.trace.reduce("mean", s.trace.map("pow", (x,)), [2], keep=True)
    epsilon = s.trace.value("epsilon", (), Source.CONST)
    scaled = s.trace.map("mul", (x, s.trace.map("rsqrt", (s.trace.map("add", (mean, epsilon)),))))
    graph = s.done(s.trace.map("mul", (scaled, s.weight(HIDDEN))))
    (norm,) = operators(graph, "norm")
    assert [param.name for param in norm.params] == ["weight"] and not operators(graph, "stream")


def test_a_table_of_few_rows_is_not_split():
    s = Sketch()
    types = s.trace.value("types", (BATCH, SEQ), Source.TOKENS)
    looked_up = s.trace.add(Kind.GATHER, "embedding", (s.weight(2, HIDDEN), types), (BATCH, SEQ, HIDDEN))
    graph = s.done(s.trace.map("add", (s.x, looked_up)))
    (stream,) = operators(graph, "stream")
    assert stream.params[0].dims == ("types", "hidden") and len(operators(graph, "embedding")) == 1


def test_an_encoders_output_is_carried_to_every_layer_of_the_decoder():
    s = Sketch()
    tokens = s.trace.value("decoder_tokens", (BATCH, 6), Source.TOKENS)
    for _ in range(2):
        s.x = s.trace.map("add", (s.x, s.dense(s.trace.map("tanh", (s.dense(s.x, 96),)), HIDDEN)))
    memory = s.x
    x = s.trace.add(Kind.GATHER, "embedding", (s.weight(100, HIDDEN), tokens), (BATCH, 6, HIDDEN))
    for _ in range(3):
        q, k, v = s.heads(s.dense(x, HIDDEN)), s.heads(s.dense(memory, HIDDEN)), s.heads(s.dense(memory, HIDDEN))
        mixed = s.trace.add(Kind.ATTENTION, "attention", (q, k, v), (BATCH, 12, 6, HEAD), causal=False)
        merged = s.trace.view(s.trace.permute(mixed, (0, 2, 1, 3)), (BATCH, 6, HIDDEN))
        x = s.trace.map("add", (x, s.dense(merged, HIDDEN)))
    graph = s.done(x)
    decoder = [graph.layer(index) for index in range(graph.num_layers) if
               any(op.kind == "attention" for op in graph.layer(index).ops)]
    assert [operand.tensor for layer in decoder for operand in layer.carried] == ["carried1"] * 3
    attention = next(op for op in decoder[1].ops if op.kind == "attention")
    assert attention.static_sizes["kv_seq"] == SEQ and "seq" not in attention.static_sizes
    assert graph.facts["seq_len"] == 6


def test_attention_in_windows_is_of_positions_all_the_same():
    s = Sketch()
    windows = s.trace.view(s.x, (BATCH, 2, 4, HIDDEN))
    q, k, v = (s.trace.permute(s.trace.view(s.dense(windows, HIDDEN), (BATCH, 2, 4, 12, HEAD)), (0, 1, 3, 2, 4))
               for _ in range(3))
    mixed = s.trace.add(Kind.ATTENTION, "attention", (q, k, v), (BATCH, 2, 12, 4, HEAD), causal=False)
    graph = s.done(s.trace.view(s.trace.permute(mixed, (0, 1, 3, 2, 4)), (BATCH, SEQ, HIDDEN)))
    (attention,) = operators(graph, "attention")
    assert graph.facts["seq_len"] == SEQ and attention.static_sizes == {"kv_seq": 4, "heads": 12, "head_dim": HEAD}


def test_flops_that_can_not_be_told_apart_are_refused():
    s = Sketch()
    weight = s.weight(BATCH, HIDDEN, HIDDEN)  # one for each sequence of the batch: no loop dims of a parameter
    labels = (0, 1, 2), (0, 2, 3), (0, 1, 3)
    with pytest.raises(InputError, match="can't be told apart"):
        s.done(s.trace.einsum(s.x, weight, *labels))
