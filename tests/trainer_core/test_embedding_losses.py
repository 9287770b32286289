"""Losses of sentence embeddings against their formulas, written anew in plain PyTorch."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote
from tests.trainer_core.small_tasks import Small, make_tiny_bert
from tests.trainer_core.small_texts import triplets
from tests.trainer_core.test_text_classification import CALM, PLAIN

pytestmark = pytest.mark.train

TASK = {"type": "sentence_transformer"}
SIZE = 32
ROWS = 8


def _distinct() -> list[dict[str, Any]]:
    """Eight triplets of uneven lengths in which no text comes twice."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for i, row in enumerate(triplets(200, seed=3)):
        texts = {name: text + " and late" * (i % 4) for name, text in row.items()}
        if not seen & set(texts.values()) and len(set(texts.values())) == 3:
            seen |= set(texts.values())
            found.append(texts)
        if len(found) == ROWS:
            return found
    raise AssertionError("not enough rows")


TRIPLETS = _distinct()
PAIRS = [{"anchor": row["anchor"], "positive": row["positive"]} for row in TRIPLETS]
SCORES = [0.1, 0.9, 0.4, 0.4, 0.0, 1.0, 0.7, 0.3]
TRUTH = [0, 1, 1, 0, 1, 0, 0, 1]
SENTENCES = [{"sentence1": r["anchor"], "sentence2": r["positive"]} for r in TRIPLETS]
SCORED = [row | {"score": score} for row, score in zip(SENTENCES, SCORES, strict=True)]
JUDGED = [row | {"label": truth} for row, truth in zip(SENTENCES, TRUTH, strict=True)]
CLASSES = [row | {"label": ["no", "yes", "perhaps"][i % 3]} for i, row in enumerate(SENTENCES)]
LABELLED = [{"text": row["anchor"], "label": "ab"[i % 2]} for i, row in enumerate(TRIPLETS)]
VECTORS = [[math.sin(i * SIZE + j) for j in range(SIZE)] for i in range(ROWS)]
TAUGHT = [{"text": r["anchor"], "label": v} for r, v in zip(TRIPLETS, VECTORS, strict=True)]
MARGINS = [row | {"score": score} for row, score in zip(TRIPLETS, SCORES, strict=True)]
TWO_SCORES = [
    row | {"score": [score, 1 - score]} for row, score in zip(TRIPLETS, SCORES, strict=True)
]


@pytest.fixture(scope="module")
def calm(small: Small) -> Small:
    """A model without dropout, and another one as a guide."""
    make_tiny_bert(small.folder / "calm-vectors", **CALM)
    make_tiny_bert(small.folder / "guide", seed=9, **CALM)
    return small


class Bert:
    """Mean pooling over a BERT, by hand."""

    def __init__(self, small: Small, name: str = "calm-vectors") -> None:
        from transformers import AutoModel, AutoTokenizer, set_seed

        set_seed(42)
        self.model = AutoModel.from_pretrained(small.folder / name)
        self.tokenizer = AutoTokenizer.from_pretrained(small.folder / name)
        set_seed(42)

    def __call__(self, texts: list[str], layer: int = -1) -> Any:
        given = self.tokenizer(texts, padding=True, return_tensors="pt")
        states = self.model(**given, output_hidden_states=True).hidden_states[layer]
        mask = given["attention_mask"][..., None].float()
        return (states * mask).sum(1) / mask.sum(1)


def _columns(rows: list[dict[str, Any]]) -> list[list[str]]:
    names = [name for name in rows[0] if name not in ("label", "score")]
    return [[row[name] for row in rows] for name in names]


def _cosines(a: Any, b: Any) -> Any:
    """All with all."""
    import torch

    return torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T


def _cosine(a: Any, b: Any) -> Any:
    """Row by row."""
    return _cosines(a, b).diagonal()


def _nearest_positive(scores: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def _ranked(vectors: list[Any], _: Any, scale: float = 20.0) -> Any:
    import torch

    return _nearest_positive(scale * _cosines(vectors[0], torch.cat(vectors[1:])))


def _symmetric(vectors: list[Any], _: Any) -> Any:
    a, b = vectors
    forward = 20 * _cosines(a, b)
    return (_nearest_positive(forward) + _nearest_positive(forward.T)) / 2


def _mega_batch(vectors: list[Any], _: Any) -> Any:
    import torch

    cosines = _cosines(*vectors)
    others = cosines.masked_fill(torch.eye(len(cosines), dtype=torch.bool), -2).max(1).values
    return (torch.relu(0.8 - cosines.diagonal()) + torch.relu(others - 0.3)).mean()


def _cosent(vectors: list[Any], labels: Any) -> Any:
    import torch

    cosines = 20 * _cosine(*vectors)
    wrong = [
        cosines[i] - cosines[j]
        for i in range(len(labels))
        for j in range(len(labels))
        if labels[i] < labels[j]
    ]
    return torch.logsumexp(torch.stack([torch.zeros(()), *wrong]), 0)


def _contrastive(vectors: list[Any], labels: Any) -> Any:
    import torch

    distances = 1 - _cosine(*vectors)
    near, far = labels * distances**2, (1 - labels) * torch.relu(0.5 - distances) ** 2
    return (0.5 * (near + far)).mean()


def _online(vectors: list[Any], labels: Any) -> Any:
    import torch

    distances = 1 - _cosine(*vectors)
    near, far = distances[labels == 1], distances[labels == 0]
    hard = near[near > far.min()], far[far < near.max()]
    return (hard[0] ** 2).sum() + (torch.relu(0.5 - hard[1]) ** 2).sum()


def _triplet(vectors: list[Any], _: Any) -> Any:
    import torch

    near, far = (1 - _cosine(vectors[0], other) for other in vectors[1:])
    return torch.relu(near - far + 0.4).mean()


def _batch_all(vectors: list[Any], labels: Any) -> Any:
    import torch

    [texts] = vectors
    distances = 1 - _cosines(texts, texts)
    found = [
        torch.relu(distances[a, p] - distances[a, n] + 0.3)
        for a in range(ROWS)
        for p in range(ROWS)
        for n in range(ROWS)
        if a != p and labels[a] == labels[p] and labels[a] != labels[n]
    ]
    positive = [loss for loss in found if loss > 1e-16]
    return torch.stack(positive).mean()


def _batch_hard(vectors: list[Any], labels: Any) -> Any:
    import torch

    [texts] = vectors
    distances = 1 - _cosines(texts, texts)
    same = labels[:, None] == labels[None]
    others = same & ~torch.eye(ROWS, dtype=torch.bool)
    hardest = torch.where(others, distances, 0.0).max(1).values
    nearest = torch.where(same, torch.inf, distances).min(1).values
    return torch.relu(hardest - nearest + 0.3).mean()


def _mse(vectors: list[Any], labels: Any) -> Any:
    return ((vectors[0] - labels) ** 2).mean()


def _embed_distill(vectors: list[Any], labels: Any) -> Any:
    return (1 - _cosine(vectors[0], labels)).mean()


def _dots(vectors: list[Any]) -> list[Any]:
    return [(vectors[0] * other).sum(-1) for other in vectors[1:]]


def _margin_mse(vectors: list[Any], labels: Any) -> Any:
    near, far = _dots(vectors)
    return ((near - far - labels) ** 2).mean()


def _distill(vectors: list[Any], labels: Any) -> Any:
    import torch

    said = torch.stack(_dots(vectors), 1) / 2.0
    wanted = (labels / 2.0).softmax(-1)
    return (wanted * (wanted.log() - said.log_softmax(-1))).sum(-1).mean() * 4


def _in_two_lengths(vectors: list[Any], _: Any) -> Any:
    """Matryoshka: the whole vector, and with half the weight its first eight numbers."""
    return _ranked(vectors, None) + 0.5 * _ranked([vector[:, :8] for vector in vectors], None)


# task, rows, labels, formula
Case = tuple[dict[str, Any], list[dict[str, Any]], Any, Callable[[list[Any], Any], Any]]
ALONE: dict[str, Case] = {
    "cosine_similarity": (
        {"loss": "cosine_similarity"},
        SCORED,
        SCORES,
        lambda vectors, labels: ((_cosine(*vectors) - labels) ** 2).mean(),
    ),
    "contrastive": ({}, JUDGED, [float(t) for t in TRUTH], _contrastive),
    "triplet": (
        {"loss": "triplet", "loss_args": {"distance": "cosine", "margin": 0.4}},
        TRIPLETS,
        None,
        _triplet,
    ),
    "mse": ({}, TAUGHT, VECTORS, _mse),
    "embed_distill": ({"loss": "embed_distill"}, TAUGHT, VECTORS, _embed_distill),
    "margin_mse": ({}, MARGINS, SCORES, _margin_mse),
    "distill_kl_div": (
        {"loss": "distill_kl_div", "loss_args": {"temperature": 2.0}},
        TWO_SCORES,
        [[score, 1 - score] for score in SCORES],
        _distill,
    ),
}
TOGETHER: dict[str, Case] = {
    "mnrl": ({}, PAIRS, None, _ranked),
    "mnrl_negatives": (
        {"loss_args": {"scale": 10.0}},
        TRIPLETS,
        None,
        lambda v, _: _ranked(v, _, 10),
    ),
    "mnrl_symmetric": ({"loss": "mnrl", "loss_args": {"symmetric": True}}, PAIRS, None, _symmetric),
    "cached_mnrl": (
        {"loss": "cached_mnrl", "loss_args": {"mini_batch_size": 3}},
        TRIPLETS,
        None,
        _ranked,
    ),
    "mega_batch_margin": (
        {"loss": "mega_batch_margin", "loss_args": {"mini_batch_size": 3}},
        PAIRS,
        None,
        _mega_batch,
    ),
    "cosent": ({}, SCORED, SCORES, _cosent),
    "online_contrastive": ({"loss": "online_contrastive"}, JUDGED, TRUTH, _online),
    "batch_all_triplet": (
        {"loss_args": {"distance": "cosine", "margin": 0.3}},
        LABELLED,
        [i % 2 for i in range(ROWS)],
        _batch_all,
    ),
    "batch_hard_triplet": (
        {"loss": "batch_hard_triplet", "loss_args": {"distance": "cosine", "margin": 0.3}},
        LABELLED,
        [i % 2 for i in range(ROWS)],
        _batch_hard,
    ),
    "matryoshka": (
        {"matryoshka_dims": [32, 8], "matryoshka_weights": [1.0, 0.5]},
        PAIRS,
        None,
        _in_two_lengths,
    ),
    "cached_matryoshka": (
        {"loss": "cached_mnrl", "matryoshka_dims": [32, 8], "matryoshka_weights": [1.0, 0.5]},
        PAIRS,
        None,
        _in_two_lengths,
    ),
}


def _run(small: Small, zygote: Zygote, name: str, case: Case, **training: Any) -> list[float]:
    task, rows, *_ = case
    given = PLAIN | {"per_device_train_batch_size": ROWS} | training
    model = {"source": "folder", "name_or_path": str(small.folder / "calm-vectors")}
    run = zygote.run(small.launch(f"loss-{name}", TASK | task, rows, training=given, model=model))
    return _losses(run)


def _losses(run: Outcome) -> list[float]:
    assert run.code == 0, run.log
    return [run.losses[step] for step in (1, 2)]


def _steps(parameters: Any, loss: Callable[[], Any]) -> list[float]:
    """Losses of two steps of plain SGD over all rows at once."""
    import torch

    optimizer = torch.optim.SGD(parameters, lr=0.1)
    found = []
    for _ in range(2):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def _expected(small: Small, case: Case) -> list[float]:
    import torch

    _, rows, labels, formula = case
    embed = Bert(small)
    truth = None if labels is None else torch.tensor(labels)
    return _steps(
        embed.model.parameters(), lambda: formula([embed(texts) for texts in _columns(rows)], truth)
    )


@pytest.mark.parametrize("name", ALONE)
def test_a6_losses_of_rows_are_means_over_a_step(calm: Small, zygote: Zygote, name: str) -> None:
    """3 + 3 + 2 accumulated rows of uneven lengths are as 8 at once."""
    training = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}
    found = _run(calm, zygote, name, ALONE[name], **training)
    assert found == pytest.approx(_expected(calm, ALONE[name]), rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("name", TOGETHER)
def test_losses_of_batches(calm: Small, zygote: Zygote, name: str) -> None:
    found = _run(calm, zygote, name, TOGETHER[name])
    assert found == pytest.approx(_expected(calm, TOGETHER[name]), rel=1e-4, abs=2e-5)


def test_a6_classes_of_pairs_have_a_head_of_their_own(calm: Small, zygote: Zygote) -> None:
    """Its weights are drawn after the seed, and trained as the model's are."""
    import torch

    training = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}
    found = _run(calm, zygote, "softmax", ({}, CLASSES, None, _ranked), **training)
    embed = Bert(calm)
    head = torch.nn.Linear(3 * SIZE, 3)
    truth = torch.tensor([["no", "perhaps", "yes"].index(row["label"]) for row in CLASSES])

    def loss() -> Any:
        a, b = (embed(texts) for texts in _columns(CLASSES))
        logits = head(torch.cat([a, b, (a - b).abs()], dim=1))
        return torch.nn.functional.cross_entropy(logits, truth)

    expected = _steps([*embed.model.parameters(), *head.parameters()], loss)
    assert found == pytest.approx(expected, rel=1e-4, abs=2e-5)


@pytest.mark.parametrize("loss", ["gist", "cached_gist"])
def test_a_guide_sorts_out_false_negatives(calm: Small, zygote: Zygote, loss: str) -> None:
    """Whatever the guide finds closer to the anchor than its positive is no negative."""
    import torch

    guide = {"source": "folder", "name_or_path": str(calm.folder / "guide")}
    args = {"temperature": 0.05} | ({"mini_batch_size": 3} if loss == "cached_gist" else {})
    task = {"loss": loss, "guide": guide, "loss_args": args}
    found = _run(calm, zygote, loss, (task, PAIRS, None, _ranked))
    embed, guided = Bert(calm), Bert(calm, "guide")
    a, p = _columns(PAIRS)

    def loss_of() -> Any:
        anchor, positive = embed(a), embed(p)
        with torch.no_grad():
            by_guide = guided(a), guided(p)
            own = _cosine(*by_guide)[:, None]
        parts = []
        for (left, right), first, second in (
            ((0, 1), anchor, positive),
            ((0, 0), anchor, anchor),
            ((1, 1), positive, positive),
        ):
            closer = _cosines(by_guide[left], by_guide[right]) > own
            if (left, right) == (0, 1):
                closer &= ~torch.eye(ROWS, dtype=torch.bool)
            parts.append(_cosines(first, second).masked_fill(closer, -torch.inf))
        return _nearest_positive(torch.cat(parts, 1) / 0.05)

    expected = _steps(embed.model.parameters(), loss_of)
    assert found == pytest.approx(expected, rel=1e-4, abs=2e-5)


def test_earlier_layers_learn_as_well(calm: Small, zygote: Zygote) -> None:
    """AdaptiveLayer on a model of two layers: hidden states 0 and 1 are the earlier ones, each with
    the loss and with the divergence from the last layer's vectors."""
    import torch

    task = {"adaptive_layer": {"n_layers_per_step": -1, "kl_temperature": 0.5}}
    found = _run(calm, zygote, "adaptive", (task, PAIRS, None, _ranked))
    embed = Bert(calm)
    columns = _columns(PAIRS)

    def loss() -> Any:
        last = [embed(texts) for texts in columns]
        goal = (torch.cat(last) / 0.5).softmax(-1).detach()
        total = _ranked(last, None)
        for layer in (0, 1):
            earlier = [embed(texts, layer) for texts in columns]
            divergence = torch.nn.functional.kl_div(
                (torch.cat(earlier) / 0.5).log_softmax(-1), goal, reduction="batchmean"
            )
            total = total + _ranked(earlier, None) / 2 + divergence * 0.5
        return total

    expected = _steps(embed.model.parameters(), loss)
    assert found == pytest.approx(expected, rel=1e-4, abs=2e-5)


def test_texts_alone_are_told_apart(calm: Small, zygote: Zygote) -> None:
    """Contrastive tension: two copies of the model agree about each text; the scale is learned."""
    import torch

    rows = [{"text": row["anchor"]} for row in TRIPLETS]
    found = _run(calm, zygote, "tension", ({}, rows, None, _ranked))
    first, second = Bert(calm), Bert(calm)
    scale = torch.nn.Parameter(torch.tensor(math.log(20.0)))
    [texts] = _columns(rows)

    def loss() -> Any:
        scores = _cosines(first(texts), second(texts)) * scale.exp()
        return (_nearest_positive(scores) + _nearest_positive(scores.T)) / 2

    parameters = [*first.model.parameters(), *second.model.parameters(), scale]
    assert found == pytest.approx(_steps(parameters, loss), rel=1e-4, abs=2e-5)


def test_a25_the_order_of_columns_means_nothing(calm: Small, zygote: Zygote) -> None:
    """Permuted columns, others beside them and the ecosystem's own names give the same losses."""
    permuted = [
        {"id": i, "gegenteil": r["negative"], "antwort": r["positive"], "frage": r["anchor"]}
        for i, r in enumerate(TRIPLETS)
    ]
    first = _run(calm, zygote, "ordered", ({}, TRIPLETS, None, _ranked))
    model = {"source": "folder", "name_or_path": str(calm.folder / "calm-vectors")}
    training = PLAIN | {"per_device_train_batch_size": ROWS}
    launch = calm.launch("permuted", TASK, permuted, training=training, model=model)
    launch["spec"]["data"]["train"][0]["columns"] = {
        "anchor": "frage",
        "positive": "antwort",
        "negative": "gegenteil",
    }
    assert _losses(zygote.run(launch)) == first


def test_prompts_pooling_and_length_reach_the_model(calm: Small, zygote: Zygote) -> None:
    """The loss as of the prompted texts, cut to length, with the vector of the first token."""
    import torch

    task = {
        "prompts": {"anchor": "the shop: ", "positive": "the answer: "},
        "pooling_mode": "cls",
        "normalize": True,
        "max_length": 12,
        "batch_sampler": "batch_sampler",
    }
    given = PLAIN | {"per_device_train_batch_size": ROWS}
    model = {"source": "folder", "name_or_path": str(calm.folder / "calm-vectors")}
    launch = calm.launch("prompted", TASK | task, PAIRS, training=given, model=model)
    launch["spec"]["data"]["over_length"] = "truncate_right"
    run = zygote.run(launch)
    embed = Bert(calm)
    a, p = _columns(PAIRS)

    def vectors(texts: list[str], prompt: str) -> Any:
        tokens = embed.tokenizer(
            [prompt + t for t in texts],
            padding=True,
            truncation=True,
            max_length=12,
            return_tensors="pt",
        )
        return embed.model(**tokens).last_hidden_state[:, 0]

    expected = _steps(
        embed.model.parameters(),
        lambda: _ranked([vectors(a, "the shop: "), vectors(p, "the answer: ")], None),
    )
    assert _losses(run) == pytest.approx(expected, rel=1e-4, abs=2e-5)
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(run.work / "model"), device="cpu")
    assert loaded.max_seq_length == 12
    assert loaded.prompts == {"query": "the shop: ", "document": "the answer: "}
    [vector] = torch.tensor(loaded.encode_query([a[0]]))
    assert vector.norm().item() == pytest.approx(1.0, abs=1e-5)
    modules = json.loads((run.work / "model/modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]


def test_rates_of_some_parameters(calm: Small, zygote: Zygote) -> None:
    """A rate of almost nothing for the embeddings leaves them almost where they were."""
    from safetensors.torch import load_file

    model = {"source": "folder", "name_or_path": str(calm.folder / "calm-vectors")}
    training = PLAIN | {"per_device_train_batch_size": ROWS}
    task = TASK | {"learning_rate_mapping": {"word_embeddings": 1e-10}}
    run = zygote.run(calm.launch("rates", task, PAIRS, training=training, model=model))
    assert run.code == 0, run.log
    before = load_file(calm.folder / "calm-vectors/model.safetensors")
    after = load_file(run.work / "model/model.safetensors")
    moved = {name: (after[name] - before[name]).abs().max().item() for name in before}
    assert moved["embeddings.word_embeddings.weight"] < 1e-8
    assert moved["embeddings.position_embeddings.weight"] > 1e-5
