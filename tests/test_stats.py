"""Statistics against torch's own, over chunks, and where values are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from eagle3lab import stats
from eagle3lab.records import TensorInfo
from eagle3lab.stats import all_stats, cosine, histogram, rms, tensor_stats


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(7, 5), (35,), (), (2, 3, 4), (1, 1)])
def test_statistics_are_those_of_the_whole_tensor(dtype, shape):
    tensor = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    wide, found = tensor.double(), tensor_stats(tensor)
    assert found.norm == pytest.approx(float(wide.norm()))
    assert found.mean == pytest.approx(float(wide.mean()))
    assert found.std == pytest.approx(float(wide.std(correction=0)), abs=1e-9)
    assert (found.low, found.high) == (float(wide.min()), float(wide.max()))
    assert found.zero == pytest.approx(float((wide == 0).double().mean()))
    assert (found.nan, found.inf) == (0, 0)


def test_chunks_change_nothing(monkeypatch):
    tensor = torch.randn(50, 40, generator=torch.Generator().manual_seed(2))
    tensor[7], tensor[8, 3], tensor[9, 9] = 0, float("nan"), float("-inf")
    whole = tensor_stats(tensor)
    for chunk in (7, 40, 41, 400):
        monkeypatch.setattr(stats, "CHUNK", chunk)
        part = tensor_stats(tensor)
        assert vars(part) == pytest.approx(vars(whole))


def test_what_is_not_finite_is_counted_and_left_out():
    tensor = torch.tensor([[1.0, 3.0], [float("nan"), float("inf")], [0.0, 0.0]])
    found = tensor_stats(tensor)
    assert (found.mean, found.low, found.high) == (1.0, 0.0, 3.0)
    assert (found.nan, found.inf, found.zero) == pytest.approx((1 / 6, 1 / 6, 2 / 6))
    assert found.dead_rows == 1


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_an_empty_tensor_has_no_moments(shape):
    found = tensor_stats(torch.empty(shape))
    assert math.isnan(found.mean)
    assert found.dead_rows == 0


def test_nothing_but_nan():
    found = tensor_stats(torch.full((3,), float("nan")))
    assert (found.nan, found.zero) == (1, 0)
    assert math.isnan(found.mean)


def test_all_stats_reads_one_by_one():
    tensors = {"a": torch.ones(2), "b": torch.zeros(3)}
    found = all_stats(tensors, tensors.__getitem__)
    assert (found["a"].mean, found["b"].zero) == (1, 1)


@pytest.mark.parametrize("values", [torch.arange(1000.0), torch.ones(50), torch.tensor([1.0, float("nan"), 2.0])])
def test_a_histogram_counts_every_finite_value(values):
    edges, counts = histogram(values, bins=11)
    assert len(edges) == 12
    assert int(counts.sum()) == int(values.isfinite().sum())
    assert (edges[1:] > edges[:-1]).all()


def test_rms_and_cosine_by_row():
    a = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert rms(a, rows=1).tolist() == pytest.approx([12.5**0.5, 0])
    assert cosine(a[:1], torch.tensor([[-3.0, -4.0]])).tolist() == pytest.approx([-1])
    assert rms(torch.full((2, 8), 300, dtype=torch.bfloat16)).tolist() == [300, 300]


class Source(dict):
    """Header entries, and how often each way of reading was used."""

    def __init__(self, tensors):
        super().__init__({n: TensorInfo(n, tuple(t.shape), "F32", t.nbytes, "x") for n, t in tensors.items()})
        self.tensors, self.whole, self.most = tensors, [], 0

    def read(self, name):
        self.whole.append(name)
        return self.tensors[name]

    def rows(self, name, index):
        self.most = max(self.most, len(index) * self.tensors[name][0].numel())
        return self.tensors[name][index]


def test_large_tensors_stream_by_rows(monkeypatch):
    monkeypatch.setattr(stats, "CHUNK", 300)
    generator, said = torch.Generator().manual_seed(2), []
    tensors = {"big": torch.randn(50, 40, generator=generator), "small": torch.randn(5, 4), "flat": torch.randn(900),
               "deep": torch.randn(30, 4, 5, generator=generator), "none": torch.empty(0, 4), "thin": torch.empty(40, 0)}  # fmt: skip
    tensors["big"][7], tensors["big"][8, 3], tensors["big"][9, 9] = 0, float("nan"), float("-inf")
    source = Source(tensors)
    found = all_stats(source, source.read, source.rows, lambda done, total: said.append((done, total)))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert vars(found[name]) == pytest.approx(vars(tensor_stats(tensor)), nan_ok=True)
    assert found["big"].dead_rows == 1
    assert source.most <= 300
    assert set(source.whole) == {"small", "flat", "none", "thin"}
    everything = sum(t.numel() for t in tensors.values())
    assert {total for _, total in said} == {everything}
    assert [done for done, _ in said] == sorted(done for done, _ in said)
    assert said[-1][0] == everything
    assert len({done for done, _ in said if done < 2000}) > 5  # "big" tells of its blocks


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8])
def test_narrow_dtypes_are_measured_too(dtype):
    tensor = torch.tensor([[1.0, 2.0], [0.0, 0.0]]).to(dtype)
    found = tensor_stats(tensor)
    assert (found.mean, found.high, found.dead_rows) == (0.75, 2, 1)
