"""Picture metrics as distributions: closed forms, enumeration, no bias, and a permutation test that errs as often as it says. Mutants fail
each."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from mmspec.vision.quality import distances, metrics
from mmspec.vision.quality.distances import LevelTally, Sides, horizontal, variation_over, vertical
from mmspec.vision.quality.metrics import PictureSet, compare

SIGNED = {"entropy", "nll", "nll_deviation", "accuracy"}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def pictures(n, seed=0, shift=0.0, likely=None, classes=None):
    """Pictures of a distribution that `shift` moves in every field; `likely` [K] is the codes' distribution."""
    g = generator(seed)
    likely = torch.ones(6) if likely is None else likely
    labels = None if classes is None else torch.arange(n) % classes
    apart = 0 if labels is None else 5.0 * labels[:, None]
    return PictureSet(
        features=torch.randn(n, 3, generator=g) + shift + apart,
        codes=torch.multinomial(likely, n * 12, True, generator=g).view(n, 3, 4),
        nll=torch.rand(n, 12, generator=g) * (1 + shift),
        hits=torch.rand(n, generator=g) < 0.9 - shift / 2,
        labels=labels,
    )


def z_of(values):
    values = torch.as_tensor(values, dtype=torch.float64)
    return (values.mean() / (values.std() / len(values) ** 0.5)).item()


# --- Frechet ----------------------------------------------------------------------------------------------------------


def test_frechet_of_normals_is_the_closed_form():
    """Commuting covariances: |m|^2 + sum (sqrt a - sqrt b)^2; then a rotated pair against a root made another way."""
    zero, mean = torch.zeros(4, dtype=torch.float64), torch.tensor([1.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    a, b = torch.tensor([4.0, 1.0, 0.0, 9.0]).double(), torch.tensor([1.0, 1.0, 2.0, 0.0]).double()
    expected = mean.square().sum() + (a.sqrt() - b.sqrt()).square().sum()
    assert (distances.frechet_of_normals(zero, a.diag(), mean, b.diag()) - expected).abs() < 1e-9
    x, y = normal(4, 4, seed=1), normal(4, 4, seed=2)
    cov_a, cov_b = x @ x.T, y @ y.T
    overlap = torch.linalg.eigvals(cov_a @ cov_b).real.sqrt().sum()  # the product itself is not symmetric
    expected = mean.square().sum() + cov_a.trace() + cov_b.trace() - 2 * overlap
    assert (distances.frechet_of_normals(mean, cov_a, zero, cov_b) - expected).abs() < 1e-9
    assert (distances.frechet_of_normals(zero, cov_b, mean, cov_a) - expected).abs() < 1e-9


def test_frechet_uses_the_sets_own_moments():
    a, b = normal(30, 5) + 100, 2 * normal(40, 5, seed=1) + 101
    own = distances.frechet_of_normals(a.mean(0), a.T.cov(), b.mean(0), b.T.cov()).item()
    assert abs(metrics.frechet(a, b) - own) < 1e-9
    assert abs(metrics.frechet(a + 7, b + 7) - own) < 1e-9
    assert abs(metrics.frechet(a, a + 3) - 5 * 9) < 1e-6
    assert metrics.frechet(a[:4], a[:4]) < 1e-6, "fewer pictures than features"


# --- kernel distance --------------------------------------------------------------------------------------------------


def kernel_by_hand(a, b):
    def k(x, y):
        return (float(x @ y) / len(x) + 1) ** 3

    within = [sum(k(x, y) for x, y in itertools.permutations(s, 2)) / (len(s) * (len(s) - 1)) for s in (a, b)]
    return sum(within) - 2 * sum(k(x, y) for x in a for y in b) / (len(a) * len(b))


def biased(a, b):
    """The mutant: pictures are paired with themselves too."""
    joint = torch.cat([a, b])
    kernel = (joint @ joint.T / a.shape[1] + 1) ** 3
    n = len(a)
    return (kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()).item()


def test_kernel_distance_is_the_sum_over_pairs():
    a, b = normal(5, 3), normal(7, 3, seed=1) + 1
    assert abs(metrics.kernel_distance(a, b) - kernel_by_hand(a, b)) < 1e-9


def test_kernel_distance_is_made_in_blocks(monkeypatch):
    a, b = normal(50, 3), normal(70, 3, seed=1)
    whole = metrics.kernel_distance(a, b)
    monkeypatch.setattr(distances, "_ENTRIES", 1000)
    assert abs(metrics.kernel_distance(a, b) - whole) < 1e-9


def test_kernel_distance_is_unbiased_and_the_mutant_is_not():
    pairs = [(normal(12, 4, seed=2 * s), normal(9, 4, seed=2 * s + 1)) for s in range(600)]
    assert abs(z_of([metrics.kernel_distance(a, b) for a, b in pairs])) < 4
    assert z_of([biased(a, b) for a, b in pairs]) > 20
    far = [metrics.kernel_distance(a, b + 0.5) for a, b in pairs[:100]]
    assert z_of(far) > 6


def test_copies_in_a_resampled_set_are_not_paired():
    """The mean over resampled sets is the distance itself. Pairing copies, as passing the copied rows does, moves it."""
    a, b = normal(10, 3), normal(10, 3, seed=1) + 0.3
    g, pooled = generator(), torch.cat([a, b])
    picks = [torch.randint(10, (4000, 10), generator=g) for _ in range(2)]
    own = torch.eye(20, dtype=torch.float64)
    counts = Sides(own[picks[0]].sum(1), own[picks[1] + 10].sum(1))
    resampled = distances.kernel_over(pooled, counts) - metrics.kernel_distance(a, b)
    assert abs(z_of(resampled)) < 4
    copied = [metrics.kernel_distance(a[picks[0][r]], b[picks[1][r]]) - metrics.kernel_distance(a, b) for r in range(400)]
    assert z_of(copied) > 4


# --- precision and recall ---------------------------------------------------------------------------------------------


def test_precision_and_recall_by_enumeration():
    real, made = normal(20, 2), normal(15, 2, seed=1) * 0.3

    def covered(points, centres):
        radii = [sorted(float((c - d).norm()) for d in centres)[2] for c in centres]
        return sum(any(float((p - c).norm()) <= r for c, r in zip(centres, radii, strict=True)) for p in points) / len(points)

    assert metrics.precision_recall(real, made, neighbours=2) == (covered(made, real), covered(real, made))
    precision, recall = metrics.precision_recall(normal(300, 2), normal(300, 2, seed=1) * 0.1)
    assert precision > 0.95
    assert recall < 0.3, "a sampler that repeats itself is precise and recalls little"
    assert metrics.precision_recall(real, made + 100) == (0, 0)
    with pytest.raises(ValueError, match="real has 3 pictures: it needs more than neighbours=3"):
        metrics.precision_recall(real[:3], made)


# --- codes ------------------------------------------------------------------------------------------------------------


def dense_variation(a, b, bigram=None):
    """Total variation over a table of all K^2 bigrams (or K codes)."""
    k = int(max(a.max(), b.max())) + 1
    tables = []
    for codes in (a, b):
        table = torch.zeros(k, k, dtype=torch.float64)
        for _, i, j in itertools.product(*map(range, codes.shape)):
            down, right = {"horizontal": (0, 1), "vertical": (1, 0), None: (0, 0)}[bigram]
            if i + down < codes.shape[1] and j + right < codes.shape[2]:
                pair = codes[_, i, j], codes[_, i + down, j + right]
                table[pair] += 1
        tables.append(table / table.sum())
    return (tables[0] - tables[1]).abs().sum().item() / 2


def test_histograms_and_bigrams_are_the_dense_tables():
    a, b = torch.randint(5, (4, 3, 5), generator=generator()), torch.randint(1, 7, (6, 3, 5), generator=generator(1))
    assert abs(metrics.histogram_distance(a, b) - dense_variation(a, b)) < 1e-12
    across, down = metrics.bigram_distances(a, b)
    assert abs(across - dense_variation(a, b, "horizontal")) < 1e-12
    assert abs(down - dense_variation(a, b, "vertical")) < 1e-12
    assert abs(across - down) > 1e-3


def test_bigrams_see_what_histograms_do_not():
    """Stripes turned by a right angle: one histogram, other neighbours."""
    stripes = torch.tensor([0, 1]).repeat(3, 4, 2)
    assert metrics.histogram_distance(stripes, stripes.mT) < 1e-12
    assert metrics.bigram_distances(stripes, stripes.mT) == pytest.approx((1, 1))


def test_large_codebooks_take_no_table():
    """16384^2 bigrams would take 2 GiB; only those that occur are listed."""
    codes = torch.randint(16384, (200, 8, 8), generator=generator())
    tally = LevelTally.of(horizontal(codes))
    assert tally.counts.shape[0] <= 200 * 8 * 7
    assert tally.counts._nnz() <= 200 * 8 * 7
    assert abs(variation_over(tally, Sides.of(100, 100, codes.device)).item() - 1) < 0.01
    seen = {pair for rows in codes.tolist() for one, two in itertools.pairwise(rows) for pair in zip(one, two, strict=True)}
    assert len(vertical(codes).unique()) == len(seen)


def test_entropy_and_levels():
    assert abs(metrics.usage_entropy(torch.tensor([[[0, 1], [2, 3]]])) - math.log(4)) < 1e-12
    assert metrics.usage_entropy(torch.zeros(3, 2, 2).long()) == 0
    skewed = torch.tensor([[0, 0, 0, 5]])
    assert abs(metrics.usage_entropy(skewed) + 0.75 * math.log(0.75) + 0.25 * math.log(0.25)) < 1e-12
    assert metrics.accuracy(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 0, 4])) == 0.75
    assert metrics.nll_per_token(torch.tensor([[1.0, 2.0], [3.0, 6.0]])) == 3


# --- draws ------------------------------------------------------------------------------------------------------------

ROUNDS = 40


def draws(strata, seed=0):
    size, sides = metrics._draws(strata, ROUNDS, seed)
    parts = [Sides(a, b) for a, b in zip(sides.a.split([1] + [ROUNDS] * 4), sides.b.split([1] + [ROUNDS] * 4), strict=True)]
    return size, dict(zip(("whole", "dealt", "resampled", "drawn", "halved"), parts, strict=True))


def test_draws_are_what_they_say():
    plain, other = torch.arange(11), torch.arange(11, 18)
    size, kind = draws([(plain, other)])
    assert size == 5
    for name in ("whole", "dealt", "drawn", "halved"):
        assert (kind[name].a * kind[name].b == 0).all(), f"{name}: no picture is on both sides"
        assert ((kind[name].a + kind[name].b) <= 1).all(), f"{name}: no picture is taken twice"
    for name, first, second in (("whole", 11, 7), ("dealt", 11, 7), ("resampled", 11, 7), ("drawn", 5, 5), ("halved", 5, 5)):
        assert (kind[name].a.sum(1) == first).all()
        assert (kind[name].b.sum(1) == second).all()
    for name in ("whole", "resampled", "drawn"):
        assert (kind[name].a[:, other] == 0).all()
        assert (kind[name].b[:, plain] == 0).all()
    assert (kind["halved"].a[:, other] + kind["halved"].b[:, other] == 0).all(), "the floor is plain against plain"
    assert (kind["dealt"].a[:, other].sum(1) > 0).any()


def test_few_others_make_small_sets():
    """11 plain pictures against 3: halves are cut to 3 as well."""
    size, kind = draws([(torch.arange(11), torch.arange(11, 14))])
    assert size == 3
    assert all((side.sum(1) == 3).all() for name in ("drawn", "halved") for side in (kind[name].a, kind[name].b))


def test_classes_are_drawn_class_by_class():
    """Class 0 has 6 plain and 4 other pictures, class 1 has 5 and 9."""
    strata = [(torch.arange(6), torch.arange(11, 15)), (torch.arange(6, 11), torch.arange(15, 24))]
    size, kind = draws(strata)
    assert size == 3 + 2
    whole, fp16_layers = ((6, 4), (5, 9)), ((3, 3), (2, 2))
    for name, counts in (("dealt", whole), ("resampled", whole), ("drawn", fp16_layers), ("halved", fp16_layers)):
        for (plain, other), (first, second) in zip(strata, counts, strict=True):
            members = torch.cat([plain, other])
            assert (kind[name].a[:, members].sum(1) == first).all()
            assert (kind[name].b[:, members].sum(1) == second).all()


# --- compare ----------------------------------------------------------------------------------------------------------


def test_the_sets_as_they_are_are_row_zero():
    """Levels and p are about the whole sets, and agree with the plain functions on them."""
    a, b = pictures(40), pictures(30, seed=1)
    _, sides = metrics._draws(metrics._strata(a, b), 5, 0)
    whole = Sides(sides.a[:1], sides.b[:1])
    over = {name: of(whole).item() for name, of in metrics._distances(metrics._pool(a, b)).items()}
    across, down = metrics.bigram_distances(a.codes, b.codes)
    own = {
        "frechet": metrics.frechet(a.features, b.features),
        "kernel": metrics.kernel_distance(a.features, b.features),
        "histogram": metrics.histogram_distance(a.codes, b.codes),
        "horizontal": across,
        "vertical": down,
    }
    assert over.keys() == own.keys()
    assert all(abs(over[name] - own[name]) < 1e-9 for name in own)
    found = compare(a, b, rounds=19)
    assert found.keys() == own.keys() | SIGNED
    assert abs(found["nll"].plain - metrics.nll_per_token(a.nll)) < 1e-9
    assert abs(found["nll"].other - metrics.nll_per_token(b.nll)) < 1e-9
    assert abs(found["entropy"].other - metrics.usage_entropy(b.codes)) < 1e-9
    assert abs(found["accuracy"].plain - a.hits.double().mean()) < 1e-12
    assert abs(found["nll_deviation"].plain - a.nll.mean(1).double().std(correction=0)) < 1e-6
    assert found["frechet"].plain is None


def test_one_distribution_is_inside_and_a_shift_is_not():
    same = compare(pictures(200), pictures(200, seed=1))
    assert metrics.agree(same)
    assert all(d.low < d.value < d.high for d in same.values()), "copies push resampled distances up; the interval is not"
    moved = compare(pictures(200), pictures(200, seed=1, shift=0.8, likely=torch.tensor([1.0, 2, 3, 4, 5, 9])))
    for name, d in moved.items():
        assert not d.inside, name
        assert abs(d.value) > d.ceiling, name
        assert d.size == 100
        assert d.low < d.value < d.high
    assert not metrics.agree(moved)
    assert {name for name, d in moved.items() if d.plain is not None} == SIGNED
    assert moved["nll"].value > 0 > moved["accuracy"].value
    assert moved["entropy"].value < 0
    for name in SIGNED:
        assert moved[name].value * (moved[name].other - moved[name].plain) > 0


def test_metrics_are_judged_together_by_the_smallest_p():
    d = compare(pictures(40), pictures(40), rounds=19)["nll"]
    nine = {str(n): replace(d, p=0.5) for n in range(8)}
    assert metrics.agree(nine | {"last": replace(d, p=0.02)})
    assert not metrics.agree({"last": replace(d, p=0.02)})
    assert not metrics.agree(nine | {"last": replace(d, p=1 / 201)}), "the default rounds can tell"


def test_a_set_against_itself_is_as_close_as_can_be():
    """Ties count for plain: nothing tells the sets apart."""
    a = pictures(60)
    found = compare(a, a)
    assert all(d.p > 0.5 for name, d in found.items()), found
    constant = PictureSet(hits=torch.ones(20, dtype=torch.bool))
    assert compare(constant, constant)["accuracy"].p == 1


def test_one_seed_one_answer():
    a, b = pictures(40), pictures(30, seed=1)
    assert compare(a, b, seed=3) == compare(a, b, seed=3)
    assert compare(a, b, seed=3) != compare(a, b, seed=4)


def test_only_distances_that_cannot_be_negative_have_no_negative_interval():
    """Under one distribution the kernel distance is below 0 about half the time, and so are signed differences."""
    found = [compare(pictures(30, seed=2 * s), pictures(30, seed=2 * s + 1), rounds=40, seed=s) for s in range(12)]
    lows = {name: min(f[name].low for f in found) for name in found[0]}
    assert {name for name, low in lows.items() if low < 0} == SIGNED | {"kernel"}


def test_parts_may_be_missing():
    a = pictures(40)
    only = PictureSet(hits=a.hits)
    assert compare(only, only).keys() == {"accuracy"}
    line = PictureSet(codes=a.codes[:, :1])
    assert compare(line, line).keys() == {"histogram", "horizontal", "entropy"}, "one row of codes has no vertical pairs"
    longer = PictureSet(nll=torch.cat([a.nll, a.nll], 1))
    assert compare(PictureSet(nll=a.nll), longer)["nll"].value == pytest.approx(0, abs=0.02)


def test_figures_of_a_difference_of_means_are_the_textbook_ones():
    """h of n pictures: halves differ by a normal of variance 2 s^2 / h (2h = n), resampled means by s^2 / n each."""
    n = 400
    a, b = PictureSet(nll=normal(n, 1)), PictureSet(nll=normal(n, 1, seed=1) * 2 + 0.1)
    d = compare(a, b, rounds=2000)["nll"]
    error = (a.nll.var() / n + b.nll.var() / n).sqrt().item()
    fp16_layers = (4 * a.nll.var() / n).sqrt().item()
    assert abs(d.value - (b.nll.mean() - a.nll.mean()).item()) < 4 * error / 2000**0.5
    assert (d.high - d.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.06)
    assert d.floor / (fp16_layers * (2 / math.pi) ** 0.5) == pytest.approx(1, abs=0.06)
    assert d.ceiling / (fp16_layers * 1.96) == pytest.approx(1, abs=0.06)


def test_halves_that_share_pictures_fail_the_textbook(monkeypatch):
    """The mutant draws the halves one by one: its floor is too low by the root of 2."""
    honest = metrics._draws

    def sharing(strata, rounds, seed):
        size, sides = honest(strata, rounds, seed)
        sides.b[-rounds:] = sides.a[-rounds:].roll(1, 0)
        return size, sides

    a = PictureSet(nll=normal(400, 1))
    right = compare(a, a, rounds=2000)["nll"].floor
    monkeypatch.setattr(metrics, "_draws", sharing)
    assert compare(a, a, rounds=2000)["nll"].floor / right == pytest.approx(0.5**0.5, abs=0.04)


def test_value_and_floor_are_of_one_size():
    """Under one distribution they have one mean, biased metrics included; the whole sets' distance, a mutant of value, lies far below."""
    gaps, mutant = {}, {}
    for s in range(40):
        a, b = pictures(60, seed=2 * s), pictures(90, seed=2 * s + 1)
        for name, d in compare(a, b, rounds=30, seed=s).items():
            if name not in SIGNED:
                gaps.setdefault(name, []).append(d.value - d.floor)
        floor = compare(a, b, rounds=30, seed=s)
        mutant.setdefault("frechet", []).append(metrics.frechet(a.features, b.features) - floor["frechet"].floor)
        mutant.setdefault("histogram", []).append(metrics.histogram_distance(a.codes, b.codes) - floor["histogram"].floor)
    assert all(abs(z_of(gap)) < 4 for gap in gaps.values())
    assert all(z_of(gap) < -8 for gap in mutant.values())


def outside(rounds=99, repeats=400, judge=None, **distribution):
    """How often each metric of `repeats` pairs of one distribution is found outside, at level 0.1."""
    times: dict[str, int] = {}
    for s in range(repeats):
        a, b = pictures(24, seed=2 * s, **distribution), pictures(16, seed=2 * s + 1, **distribution)
        for name, d in compare(a, b, rounds=rounds, level=0.1, seed=s).items():
            times[name] = times.get(name, 0) + (not d.inside)
    return times


def binomial_tails(count, n, chance):
    """P(X <= count) and P(X >= count)."""
    distribution = [math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(n + 1)]
    return sum(distribution[: count + 1]), sum(distribution[count:])


def test_the_permutation_test_errs_as_often_as_it_says(monkeypatch):
    """Unequal sets, every metric; only accuracy has ties, which make it careful. A test by resampling, the mutant, is far off."""
    for name, count in outside().items():
        low, high = binomial_tails(count, 400, 0.1)
        assert high > 1e-4, f"{name}: outside {count} times of 400"
        assert low > 1e-4 or name == "accuracy", f"{name}: outside {count} times of 400"
    honest = metrics._draws

    def resampling(strata, rounds, seed):
        size, sides = honest(strata, rounds, seed)
        for side in (sides.a, sides.b):
            side[1 : 1 + rounds] = side[1 + rounds : 1 + 2 * rounds]
        return size, sides

    monkeypatch.setattr(metrics, "_draws", resampling)
    assert min(binomial_tails(outside(repeats=100)["frechet"], 100, 0.1)) < 1e-4


def test_classes_asked_for_are_no_spread():
    """Sets made from one list of far-apart classes: calibrated with labels, and blind without."""
    times = outside(repeats=200, classes=4)
    assert min(binomial_tails(times["frechet"], 200, 0.1)) > 1e-4
    assert min(binomial_tails(times["kernel"], 200, 0.1)) > 1e-4
    a, b = pictures(40, classes=4), pictures(40, seed=1, shift=0.8, classes=4)
    assert not compare(a, b)["frechet"].inside
    blind = compare(replace(a, labels=None), replace(b, labels=None))["frechet"]
    assert blind.p > compare(a, b)["frechet"].p


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "holds nothing to compare: give features"),
        ({"labels": torch.zeros(4)}, "holds nothing to compare"),
        ({"features": torch.zeros(4)}, r"features has shape \[4\], but needs 2 dimensions"),
        ({"features": torch.tensor([[0.0], [math.nan]])}, "features of picture 1 is not finite: leave that picture out"),
        ({"hits": torch.ones(4).bool(), "nll": torch.zeros(5, 2)}, "different numbers of pictures"),
        ({"codes": torch.zeros(4, 2, 2)}, "codes are torch.float32"),
        ({"codes": torch.full((4, 2, 2), -1)}, "some are below 0: give the integers from 0"),
    ],
)
def test_pictures_that_cannot_be(fields, said):
    with pytest.raises(ValueError, match=said):
        PictureSet(**fields)


def test_sets_that_cannot_be_compared():
    a = pictures(40, classes=2)
    with pytest.raises(ValueError, match="give both sets the same fields"):
        compare(a, replace(a, labels=None))
    with pytest.raises(ValueError, match=r"features is \[40, 3\] for plain and \[40, 2\] for other"):
        compare(a, replace(a, features=a.features[:, :2]))
    with pytest.raises(ValueError, match="40 plain and 9 other pictures: at least 10 of each are needed"):
        compare(a, pictures(9, classes=2))
    with pytest.raises(ValueError, match="class 2 has 0 plain and 13 other pictures: make at least 2 and 1"):
        compare(a, pictures(40, classes=3))
    with pytest.raises(ValueError, match=r"level=0.01 is out of reach of 50 rounds"):
        compare(a, a, rounds=50, level=0.01)
