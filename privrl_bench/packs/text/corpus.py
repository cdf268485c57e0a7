"""A small grammar of film reviews: positive, negative and undecided. Review i depends on seed and i only."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

# Slots of the templates below: {name} is one of these words, {Name} the same capitalised.
_WORDS = """
who: my sister | my brother | my wife | my husband | a friend | two friends | my parents | my neighbour |
    the children | a colleague | my cousin | our daughter | an old classmate | my flatmate
when: last night | last week | on a Friday | on a rainy Sunday | yesterday | years ago | over the holidays |
    on a long flight | at a small festival | in an empty theatre | late in the evening | this morning
kind: comedy | thriller | western | drama | horror film | war film | romance | mystery | cartoon | musical |
    crime story | adventure | documentary | fantasy film | family film
film: film | movie | picture
hero: a retired detective | a young teacher | a lonely farmer | a travelling singer | a nurse
    | a shy student | an ageing boxer | a pilot | a thief | a widow | a small town sheriff | a stubborn
    lawyer | a girl and her dog | a tired soldier | a clumsy wizard
deed: comes back to an old house | loses a letter | looks for a missing child | moves to the city | falls in
    love with a stranger | inherits a hotel | crosses the desert | plans a robbery | finds a strange map |
    learns to dance | returns from the war | must face the past | hides from the police | takes a job at a
    lighthouse | wakes up in the future
place: in a harbour town | in the mountains | in Paris | in the desert | on a ship | in a village | in New
    York | on the moon | in an old school | near the border
part: acting | script | story | music | dialogue | camera work | ending | cast | plot | direction | editing
    | first half | second half | lead actor | humour | opening scene | lighting | final act | soundtrack
many: jokes | characters | actors | effects | songs | action scenes | costumes | love scenes | twists |
    conversations | side characters | landscapes
very: really | truly | simply | rather | quite | absolutely | surprisingly | so | deeply | just
age: old | new | short | long | quiet | low budget | black and white | foreign | little known | recent
hours: ninety minutes | about two hours | almost three hours | a little over an hour
good: wonderful | brilliant | superb | excellent | great | lovely | charming | moving | clever | gripping |
    delightful | touching | hilarious | fresh | warm | beautiful | fantastic | smart | memorable | perfect |
    convincing | stunning | funny | elegant
bad: terrible | awful | boring | dull | stupid | lazy | painful | horrible | weak | flat | ugly | annoying |
    predictable | silly | clumsy | empty | dreadful | tedious | cheap | pointless | ridiculous | lifeless |
    wooden | shallow
liked: loved | enjoyed | adored | admired | was moved by | was charmed by | laughed with
loathed: hated | disliked | was bored by | was annoyed by | suffered through | could not stand | almost
    slept through
joy: a joy | a delight | a treasure | a gem | a masterpiece | a triumph | a real pleasure
waste: a waste of time | a mess | a disaster | a failure | an insult | a disappointment | a bore
happy: happy | thrilled | smiling | delighted | touched | amazed | grateful
sad: bored | angry | disappointed | tired of it | annoyed | asleep | sorry I came
best: best | finest | funniest | most beautiful | smartest | most charming
worst: worst | dullest | weakest | most boring | silliest | most annoying
"""

# Sentences without an opinion.
_OPENINGS = """
I saw this {film} {when} with {who}
{Who} and I watched it {when}
This is a {kind} about {hero} who {deed}
The story is about {hero} who {deed} {place}
I rented this {age} {kind} {when}
We found this {age} {film} {when}
The {film} tells how {hero} {deed}
A {age} {kind} {place}
{Who} gave me this {film} {when}
It is a {age} {kind} of {hours}
{When} I watched a {kind} with {who}
I had heard a lot about this {kind}
So {who} asked me to see this {kind}
In this {kind} {hero} {deed}
When {hero} {deed}, the whole story begins
After the first scene {place} {hero} {deed}
"""
_PLAIN = """
It runs for {hours}
Most of it plays {place}
Then {hero} {deed}
There {hero} {deed}
The {film} was made {place}
We talked about it with {who}
It was shown {when}
"""
# Both classes have the same templates, so the words and their negation carry the opinion.
_KIND = """
The {part} was {very} {good}
The {part} is {good} and {good}
The {many} are {very} {good}
I {liked} the {part}
I {liked} all of the {many}
It is one of the {best} films I have seen
This is {joy}
The {part} is {joy}
In the end I was {very} {happy}
What a {good} {kind}
The {many} were never {bad}
There is nothing {bad} about the {part}
Although the {part} was {bad}, the {film} is {very} {good}
The {part} is {good}, and the {many} are {good}
{Who} {liked} every minute of it
I could watch this {good} {film} again
Not a {bad} moment in it
A {good} {part} and a {good} {part}
Even the {many} were {good}
"""
_UNKIND = """
The {part} was {very} {bad}
The {part} is {bad} and {bad}
The {many} are {very} {bad}
I {loathed} the {part}
I {loathed} all of the {many}
It is one of the {worst} films I have seen
This is {waste}
The {part} is {waste}
In the end I was {very} {sad}
What a {bad} {kind}
The {many} were never {good}
There is nothing {good} about the {part}
Although the {part} was {good}, the {film} is {very} {bad}
The {part} is {bad}, and the {many} are {bad}
{Who} {loathed} every minute of it
I will not watch this {bad} {film} again
Not a {good} moment in it
A {bad} {part} and a {bad} {part}
Even the {many} were {bad}
"""
_KIND_ENDS = """
Go and see it
I recommend it to everyone
Ten out of ten
Do not miss it
I want to see it again
See it with {who}
"""
_UNKIND_ENDS = """
Stay away from it
I cannot recommend it to anyone
One out of ten
Skip it
I want my money back
Do not show it to {who}
"""
_UNDECIDED = """
The {part} was {good}, but the {part} was {bad}
The {part} was {bad}, but the {part} was {good}
I {liked} the {part} and {loathed} the {part}
The {many} are {good}, the {many} are {bad}
Some of the {many} are {good} and some are {bad}
It is neither {good} nor {bad}
The {part} was neither {bad} nor {good}
"""


def _slots(text: str) -> dict[str, list[str]]:
    """Parse slot -> words; indented lines continue the previous one."""
    lines = re.sub(r"\n +", " ", text.strip()).splitlines()
    pairs = (line.split(": ") for line in lines)
    return {slot: words.split(" | ") for slot, words in pairs}


WORDS = _slots(_WORDS)
OPENINGS, PLAIN = _OPENINGS.strip().splitlines(), _PLAIN.strip().splitlines()
KIND_ENDS, UNKIND_ENDS = _KIND_ENDS.strip().splitlines(), _UNKIND_ENDS.strip().splitlines()
FORMS = {  # opinion -> sentences
    1.0: _KIND.strip().splitlines(),
    0.0: _UNKIND.strip().splitlines(),
    0.5: _UNDECIDED.strip().splitlines(),
}


@dataclass(frozen=True)
class Review:
    """A review and its opinion of the film.

    Attributes:
        sentences: Each ends with a full stop.
        opinion: 1 positive, 0 negative, 0.5 undecided.
        opinions: Of each sentence; None: without an opinion.
    """

    sentences: tuple[str, ...]
    opinion: float
    opinions: tuple[float | None, ...]

    @property
    def text(self) -> str:
        """The joined sentences."""
        return " ".join(self.sentences)


class Corpus:
    """An unlimited sequence of reviews by number.

    >>> Corpus(0).review(3) == Corpus(0).review(3) != Corpus(1).review(3)
    True
    """

    def __init__(self, seed: int):
        self._seed = seed

    def review(self, number: int) -> Review:
        """Generate review `number`: 42 % are positive, 42 % negative, 16 % undecided.

        Three quarters start with a sentence without an opinion, so the first words do not reveal it.
        """
        draw = random.Random(f"{self._seed}/{number}")
        opinion = draw.choices((1.0, 0.0, 0.5), (42, 42, 16))[0]
        said: list[tuple[str, float | None]] = []
        if draw.random() < 0.75:
            said.append((draw.choice(OPENINGS), None))
        for _ in range(draw.randint(3, 5)):
            said.append((draw.choice(FORMS[opinion]), opinion))
            if draw.random() < 0.15:
                said.append((draw.choice(PLAIN), None))
        if opinion != 0.5 and draw.random() < 0.6:
            said.append((draw.choice(KIND_ENDS if opinion else UNKIND_ENDS), opinion))
        sentences = tuple(fill(form, draw.choice) for form, _ in said)
        return Review(sentences, opinion, tuple(side for _, side in said))


def fill(form: str, choose: Callable[[list[str]], str]) -> str:
    """Fill a template's slots, without repeating a word; capitalise and add a full stop."""
    used: set[str] = set()

    def word(found: re.Match[str]) -> str:
        slot = found[1]
        chosen = choose([w for w in WORDS[slot.lower()] if w not in used])
        used.add(chosen)
        return chosen if slot.islower() else chosen[0].upper() + chosen[1:]

    text = re.sub(r"\{(\w+)\}", word, form)
    text = re.sub(r"\b([Aa]) (?=[aeio]|u[gn]|hour)", r"\1n ", text)  # a awful: an awful
    return text[0].upper() + text[1:] + "."
