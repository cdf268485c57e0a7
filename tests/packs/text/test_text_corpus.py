"""The grammar, pieces of its reviews, and the prompts of users."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
from text_folders import script, text_env, tokenizer_of

from privrl_bench.config.schema import TextConfig
from privrl_bench.errors import ConfigError
from privrl_bench.packs.text.corpus import (
    FORMS,
    KIND_ENDS,
    OPENINGS,
    PLAIN,
    UNKIND_ENDS,
    WORDS,
    Corpus,
)
from privrl_bench.packs.text.prompt_order import prompts_of, reviews_of

MADE = TextConfig(reviews=200, min_characters=100)


def test_every_slot_has_words_and_every_word_a_slot():
    forms = [*OPENINGS, *PLAIN, *KIND_ENDS, *UNKIND_ENDS, *FORMS[1.0], *FORMS[0.0], *FORMS[0.5]]
    used = {slot.lower() for form in forms for slot in re.findall(r"{(\w+)}", form)}
    assert used == set(WORDS)
    assert not set(WORDS["good"]) & set(WORDS["bad"])
    assert all(len(set(words)) == len(words) for words in WORDS.values())


def test_reviews_are_whole_and_their_opinions_are_said():
    corpus = Corpus(5)
    reviews = [corpus.review(i) for i in range(600)]
    for review in reviews:
        assert not re.search(r"[{}_|]", review.text)
        assert all(re.fullmatch(r"[A-Z].*[a-z]\.", s) for s in review.sentences), review
        assert not re.search(r"\ba [aeio]", review.text, re.IGNORECASE), review.text
        assert {x for x in review.opinions if x is not None} == {review.opinion}
        assert len(review.opinions) == len(review.sentences)
    shares = [sum(r.opinion == o for r in reviews) / 600 for o in (1.0, 0.0, 0.5)]
    assert shares == pytest.approx([0.42, 0.42, 0.16], abs=0.06)
    assert sum(r.opinions[0] is None for r in reviews) / 600 == pytest.approx(0.75, abs=0.06)
    words = {w.strip(".,").lower() for r in reviews for w in r.text.split()}
    assert 300 < len(words) < 500


def test_a_word_is_a_token_and_every_review_is_determined_by_its_tokens():
    tokenizer = script().make_tokenizer()
    texts = [Corpus(9).review(i).text for i in range(400)]
    rows = tokenizer(texts)["input_ids"]
    assert tokenizer.unk_token_id not in {t for row in rows for t in row}
    assert [tokenizer.decode(r, clean_up_tokenization_spaces=False) for r in rows] == texts
    assert len(rows[0]) == len(re.findall(r"[A-Za-z]+|[.,]", texts[0]))
    assert tokenizer("Zebras.<|endoftext|>")["input_ids"] == [tokenizer.unk_token_id, 4, 0]


def test_a_review_depends_on_seed_and_number_alone():
    assert Corpus(5).review(77) == Corpus(5).review(77)
    assert Corpus(5).review(77) != Corpus(6).review(77)
    assert Corpus(5).review(77) != Corpus(5).review(78)


def test_pieces_know_what_is_said_in_them():
    pieces, SURE = script().pieces, script().SURE
    found = pieces(Corpus(0), range(800), 0)
    assert found == pieces(Corpus(0), range(800), 0) != pieces(Corpus(0), range(800), 1)
    targets = {target for _, target in found}
    assert {SURE, 0.5, 1 - SURE} <= targets
    assert all(SURE <= t <= 1 - SURE for t in targets)
    ends = {"recommend it to everyone": 1 - SURE, "Stay away from it.": SURE}
    for words, target in ends.items():
        whole = [t for text, t in found if text.endswith(words + "." * (words[-1] != "."))]
        assert whole
        assert sum(t == target for t in whole) > len(whole) / 2  # the others are of two reviews
    assert all(t == 0.5 for text, t in found if text in ("I", "The", "A", "Even the", "The music"))


def test_prompts_are_beginnings_of_reviews_each_users_own():
    tokenizer = tokenizer_of()
    users, aside = prompts_of(MADE, tokenizer)
    reviews = list(reviews_of(MADE))
    assert [r.place for r in reviews] == list(range(200)) == [int(r.name) for r in reviews]
    assert len(users) == 200
    assert {len(p) for p in users} == {0, 2, 3, 4, 5, 6, 7}
    public = [r for r in reviews if r.public(MADE.seed, MADE.holdout) and len(r.text) > 100]
    assert 2 < len(public) == len(aside) < 25
    for review, prompt in zip(public, aside, strict=True):
        assert prompt == list(tokenizer(review.text)["input_ids"][: len(prompt)])
    for review, prompt in zip(reviews, users, strict=True):
        assert bool(prompt) == (len(review.text) > 100 and review not in public)
        assert prompt == list(tokenizer(review.text)["input_ids"][: len(prompt)])
    assert prompts_of(MADE, tokenizer) == (users, aside)
    assert prompts_of(replace(MADE, seed=1), tokenizer)[0] != users
    # More reviews: more users, and the first ones stay who they are.
    assert prompts_of(replace(MADE, reviews=220), tokenizer)[0][:200] == users
    fixed = replace(MADE, prompt_tokens=[3, 4])
    assert {len(p) for p in prompts_of(fixed, tokenizer)[0]} == {0, 3}


def test_the_reviews_of_prompts_are_not_those_that_models_learned():
    learned = {Corpus(0).review(i).text for i in range(300)}
    assert not learned & {review.text for review in reviews_of(MADE)}


TEXTS = [f"review number {i} " + "so good " * 20 for i in range(60)]


def write(path, texts, names=None):
    """A file or folder of reviews; `names` are their identifiers, if the format has any."""
    names = names or [f"{i:04}" for i in range(len(texts))]
    if path.suffix == ".txt":
        path.write_text("".join(f"{text}\n" for text in texts))
    elif path.suffix == ".jsonl":
        rows = zip(texts, names, strict=True)
        path.write_text("".join(json.dumps({"text": t, "id": n}) + "\n\n" for t, n in rows))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": texts, "id": names}), path)
    else:
        for i, (text, name) in enumerate(zip(texts, names, strict=True)):
            file = path / ("neg" if 2 * i < len(texts) else "pos") / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return path


FILES = ["reviews.txt", "reviews.jsonl", "folder", "reviews.parquet"]


@pytest.mark.parametrize("form", FILES)
def test_reviews_from_files(tmp_path, form):
    config = TextConfig(prompts=str(write(tmp_path / form, TEXTS)), reviews=None)
    found = list(reviews_of(config))
    assert sorted(review.text for review in found) == sorted(TEXTS)
    assert sorted(review.place for review in found) == list(range(60))
    assert [r.place for r in found] != list(range(60))  # files are sorted by label
    assert all((review.name is None) == (form == "reviews.txt") for review in found)
    assert found == list(reviews_of(config))
    assert list(reviews_of(replace(config, reviews=7))) == found[:7]
    assert list(reviews_of(replace(config, seed=1))) != found


class Words:
    """A tokenizer with one token per word, for any words."""

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [[hash(word) % 997 for word in text.split()] for text in texts]}


def review(number, length):
    draw = random.Random(f"{number}/{length}")
    return " ".join(draw.choice("abcdefgh") * draw.randint(1, 9) for _ in range(length))


OTHERS = {
    **{"empty": "", "short": "bad", "blank": " " * 300, "long": review("other", 60)},
    **{"longest": review("other", 3000), "feed": review("other", 60) + "\x0c\u2028 b" * 60},
}


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("reviews", [None, 150])
def test_one_review_moves_nobody_else(tmp_path, form, reviews):
    """Replace one review at a random index: all others keep their round, slot, prompt and part."""
    texts = [review(i, 60 if i % 9 else 2) for i in range(200)]
    config = TextConfig(
        prompts=str(write(tmp_path / form, texts)), reviews=reviews, holdout=5, seed=3
    )
    users, aside = prompts_of(config, Words())
    places = [r.place for r in reviews_of(config)]
    assert len(users) == len(places) == (reviews or 200)
    draw = random.Random(form)
    for kind, text in OTHERS.items():
        if form == "reviews.txt" and kind == "feed":
            text = text.replace("\n", " ")
        for place in draw.sample(range(200), 4):
            config_of_it = replace(config, prompts=str(tmp_path / f"{kind}-{place}-{form}"))
            write(tmp_path / f"{kind}-{place}-{form}", [*texts[:place], text, *texts[place + 1 :]])
            again, shown = prompts_of(config_of_it, Words())
            changed = [k for k in range(len(users)) if again[k] != users[k]]
            assert changed in ([], [places.index(place)] if place in places else [])
            # Of the evaluation, at most this review went or came.
            mine = [p for p in aside if p not in shown], [p for p in shown if p not in aside]
            assert [len(p) for p in mine] in ([0, 0], [1, 0], [0, 1], [1, 1])
            without = [
                [p for p in x if p not in y] for x, y in ((aside, mine[0]), (shown, mine[1]))
            ]
            assert without[0] == without[1]
            if kind in ("empty", "short", "blank") and changed:
                assert again[changed[0]] == []


@pytest.mark.parametrize("form", FILES)
def test_removing_a_review_moves_no_other_to_the_public_part(tmp_path, form):
    names = [f"{i:04}" for i in range(200)]
    texts = [review(i, 60) for i in range(200)]
    before, after = tmp_path / f"before-{form}", tmp_path / f"after-{form}"
    write(before, texts, names)
    write(after, texts[:50] + texts[51:], names[:50] + names[51:])
    if form == "folder":  # sides are names of files here, so each stays in its own folder
        after = tmp_path / "same"
        write(after, texts, names)
        (after / "neg" / "0050.txt").unlink()
    sides = []
    for path in (before, after):
        config = TextConfig(prompts=str(path), reviews=None, holdout=5)
        sides.append({r.text: r.public(config.seed, 5) for r in reviews_of(config)})
    assert len(sides[1]) == 199
    assert all(sides[0][text] == public for text, public in sides[1].items())


def test_wrong_reviews_are_one_line(tmp_path):
    def problem(**changes) -> str:
        with pytest.raises(ConfigError) as caught:
            prompts_of(replace(MADE, **changes), tokenizer_of(5))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "hf download stanfordnlp/imdb" in problem(prompts=None)
    assert "no such file or folder" in problem(prompts=str(tmp_path / "none.txt"))
    (tmp_path / "a.csv").write_text("text\nhello\n")
    assert "must be a .txt file" in problem(prompts=str(tmp_path / "a.csv"))
    (tmp_path / "a.txt").write_text("")
    assert "has no reviews" in problem(prompts=str(tmp_path / "a.txt"))
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"review": "not fine"}\n')
    assert "line 2: not an object with `text`" in problem(prompts=str(tmp_path / "a.jsonl"))
    assert problem(min_characters=10_000).startswith("env.text.min_characters: 0 reviews")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt_tokens": [8, 2]}, "env.text.prompt_tokens: must be two integers"),
        ({"prompt_tokens": [0, 2]}, "env.text.prompt_tokens: must be"),
        ({"new_tokens": 0}, "env.text.new_tokens: must be an integer >= 1"),
        ({"holdout": 1}, "env.text.holdout: must be"),
        ({"reviews": None}, "env.text.reviews: must be an integer for made prompts"),
        ({"seed": -1}, "env.text.seed: must be"),
        ({"policy": ""}, "env.text.policy: must be a name or a folder"),
    ],
)
def test_wrong_settings_name_their_key(changes, expected):
    with pytest.raises(ConfigError) as caught:
        text_env(**changes)
    assert str(caught.value).startswith(expected)
