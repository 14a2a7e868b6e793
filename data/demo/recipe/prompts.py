"""Prompts from templates: topics × questions in seven categories, and which of them are held out."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

THINGS = """
a volcano|a river|a rainbow|a black hole|a comet|a desert|a rainforest|a coral reef|a tornado|an earthquake|
a tide|a cloud|a cave|an island|a lighthouse|a bridge|a tunnel|a dam|a windmill|a castle|a museum|a library|
a bakery|a market|a harbor|a railway|a bicycle|a submarine|a rocket|a satellite|a telescope|a microscope|
a compass|a clock|a battery|a magnet|an engine|a transistor|a computer|a database|a programming language|
an operating system|a search engine|a web browser|a password|a computer virus|a robot|a neural network|
an algorithm|a spreadsheet|a dictionary|an encyclopedia|a novel|a poem|a newspaper|a symphony|an opera|
a violin|a piano|a drum|a painting|a sculpture|a photograph|a garden|an orchard|a vineyard|a forest|
a pine tree|an oak tree|a cactus|a mushroom|a sunflower|a tulip|a bee|an ant colony|a butterfly|a spider|
a penguin|an owl|an eagle|a parrot|a dolphin|a shark|an octopus|a salmon|a frog|a turtle|a crocodile|a wolf|
a bear|a lion|a giraffe|an elephant|a camel|a horse|a goat|a bat|a dinosaur|a fossil|a mineral|a diamond|
an atom|a molecule|a cell|a bacterium|a vaccine|a vitamin|a muscle|bread|cheese|chocolate|coffee|tea|rice|
honey|olive oil|salt|sugar|pasta|soup|gold|silver|copper|iron|glass|paper|concrete|plastic|cotton|wool|silk|
rubber|oxygen|carbon|helium|hydrogen|water|ice|steam|fire|light|sound|heat|gravity|electricity|magnetism|
friction|energy|evolution|photosynthesis|digestion|sleep|memory|language|music|mathematics|geometry|algebra|
statistics|chess|football|swimming|tennis|yoga|trade|money|inflation|insurance|democracy|a constitution|
a court|a census|the moon|the sun|Mars|the ocean|the Silk Road|the Roman Empire|the Renaissance|
the printing press|the steam engine|recycling|solar power|wind power|nuclear power|a lake|a canyon|
a suspension bridge|a fountain|a greenhouse|a beehive|a calendar|a thermometer
"""

THING_QUESTIONS = """
What is {x}?|Explain {x} to a child.|Why is {x} important?|Tell me three facts about {x}.|
What should I know about {x}?|Describe {x} in two sentences.|Who might be interested in {x}, and why?|
Write a short paragraph about {x}.|Give me a short definition of {x}.|Summarize the main ideas behind {x}.|
How would you explain {x} to a friend?|Name one common mistake people make about {x}.|
What is a good question to ask about {x}?|Where would I come across {x}?|
What is the most surprising thing about {x}?
"""

SKILLS = """
bake bread|cook rice|make a good soup|brew coffee|grow tomatoes|plant a tree|start a small garden|
water house plants|train a puppy|look after a cat|keep goldfish|ride a bicycle|learn to swim|run a marathon|
stretch before a run|learn to play the guitar|learn to play chess|sing better|draw a portrait|paint a wall|
take good photos|write a good essay|write a short story|write a cover letter|prepare for an interview|
give a speech|learn a language|remember new words|read more books|study for an exam|take good notes|
organize my desk|clean a kitchen|fix a flat tire|change a light bulb|sew on a button|iron a shirt|
pack a suitcase|plan a trip|camp in the woods|read a map|find my way without a phone|save money|
make a budget|plan a birthday party|choose a gift|make new friends|apologize to a friend|
be a better listener|sleep better|wake up early|stop biting my nails|drink more water|eat more vegetables|
stay calm under stress|meditate|manage my time|learn to type faster|learn to program|debug a program|
back up my files|choose a strong password|build a simple website|set up a home network|
protect my privacy online|clean a computer screen|teach a child to read|help with homework|tell a good joke|
host a dinner|set a table|arrange flowers|build a bird house|sharpen a knife|recycle at home|
save energy at home|reduce waste|walk more every day|start a book club|learn to dance|write a diary|
choose a bicycle|rent an apartment|move to a new city|adopt a dog|prepare for winter|store vegetables
"""

SKILL_QUESTIONS = """
How do I {x}?|Give me three tips to {x}.|I want to {x}. Where should I start?|
What is the first step to {x}?|What do people get wrong when they try to {x}?|
Write a short checklist for someone who wants to {x}.|Why is it a good idea to {x}?|
How long does it take to {x}?|What do I need to {x}?|Encourage me to {x} in two sentences.|
Explain in simple words how to {x}.|What should I avoid when I {x}?|What does it cost to {x}?|
How can I tell whether I {x} well?|Plan one week in which I {x}.
"""

MOODS = "brave|sleepy|clever|lonely|curious|grumpy|shy|forgetful|cheerful|proud"
HEROES = """
squirrel|whale|wizard|mouse|fox|robot|pirate|knight|dragon|baker|sailor|owl|rabbit|hedgehog|giant|astronaut|
painter|gardener|king|detective|turtle|snowman|clockmaker|fisherman|crow
"""
STORY_QUESTIONS = """
Describe a {x}.|Write the first two sentences of a story about a {x}.|Write a short poem about a {x}.|
Tell me a very short story about a {x}.|Give me a title for a story about a {x}, and explain it.|
What would a {x} do on a rainy day?
"""

PEOPLE = """
my teacher|my landlord|my neighbor|my boss|a customer|my doctor|a colleague|my grandmother|a new student
"""
MATTERS = """
a meeting next week|a day off|a broken window|a late payment|a lost parcel|a birthday party|
a change of plans|the loud music|a missed call|a new project|a visit on Sunday|the garden fence
"""
MAIL_QUESTIONS = """
Write a polite message to {x}.|Write a short and friendly email to {x}.|Help me begin a letter to {x}.|
What is a good subject line for an email to {x}? Explain your choice.
"""

PAIRS = """
novels and short stories|cats and dogs|tea and coffee|weather and climate|lakes and rivers|
butter and margarine|bicycles and cars|trains and planes|radio and television|cities and villages|
planets and stars|viruses and bacteria|frogs and toads|crocodiles and alligators|mass and weight|
speed and velocity|plants and animals|fruits and vegetables|steel and iron|wood and plastic|jam and honey|
piano and guitar|poetry and prose|history and legend|facts and opinions|chess and checkers|
football and basketball|running and walking|email and letters|laptops and tablets|Python and Java|
lists and tuples|hardware and software|compilers and interpreters|arrays and linked lists|
debit cards and credit cards|taxes and fees|saving and investing|renting and buying|summer and winter|
north and south|oceans and seas|hills and mountains|fog and rain|moths and butterflies|ravens and crows|
wool and cotton|copper and silver|physics and chemistry|medicine and surgery
"""
PAIR_QUESTIONS = """
Compare {x} in two sentences.|What is the difference between {x}?|What do {x} have in common?|
Which is better, and when: {x}?|Explain the difference between {x} to a child.|
Give one example that shows the difference between {x}.|Which of these would you choose: {x}?|
Why do people confuse {x}?|Write a short dialogue about {x}.
"""

TASKS = """
adds two numbers|counts the vowels in a string|reverses a list|finds the largest number in a list|
checks for a prime|sorts words by length|removes duplicates from a list|reads a text file|
counts the words in a file|converts Celsius to Fahrenheit|computes a factorial|prints the Fibonacci numbers|
checks for a palindrome|sums the digits of a number|merges two dictionaries|rolls two dice|
picks a random word|computes the mean of a list|computes the area of a circle|
squares every number in a list|finds the common items of two lists|capitalizes every word|
prints a multiplication table|counts down from ten|checks whether a year is a leap year|
finds the longest word in a sentence|flattens a nested list|counts how often each letter appears|
writes a list to a file|joins words with commas|measures how long a loop takes|validates a password|
converts a number to binary|splits a list in two halves|finds the second largest number|
draws a triangle of stars|swaps two variables|rounds a list of prices|greets a user by name|
computes compound interest
"""
TASK_QUESTIONS = """
Write a Python function that {x}.|Show me short Python code that {x}.|How do I write a program that {x}?|
Write a Python one-liner that {x}, and explain it.|Explain step by step a function that {x}.|
Write a test for a function that {x}.|What is the simplest Python code that {x}?|
Which mistakes are common in code that {x}?|Suggest a name for a function that {x}, and write it.
"""

SUMS = """
What is {a} times {b}?|What is {a} plus {b}?|What is {b} minus {a}?|
If I have {a} apples and buy {b} more, how many do I have?|Which is larger, {a} or {b}, and by how much?|
A ticket costs {a} dollars. What do {c} tickets cost?
"""

TURNS = (
    "What is a glacier?",
    "How does it move?",
    "Why are glaciers important?",
    "What is the difference between weather and climate?",
    "Give me three tips to save energy at home.",
    "Write a Python function that adds two numbers.",
    "Thank you. Summarize what we talked about in two sentences.",
)
"""The one conversation of several turns."""


@dataclass(frozen=True)
class Prompt:
    """One prompt; ``split`` is ``train``, ``held`` (the pair left out) or ``unseen`` (the topic left out)."""

    category: str
    topic: str
    question: str
    text: str
    split: str = "train"


def words(block: str) -> list[str]:
    """The entries of one of the blocks above."""
    return [entry.strip() for entry in block.split("|") if entry.strip()]


def everything(seed: int) -> list[Prompt]:
    """Every prompt that the templates make, without repetition, in a fixed order."""
    heroes = [f"{mood} {hero}" for mood in words(MOODS) for hero in words(HEROES)]
    matters = [f"{person} about {matter}" for person in words(PEOPLE) for matter in words(MATTERS)]
    crossed = {
        "thing": (words(THINGS), THING_QUESTIONS),
        "how": (words(SKILLS), SKILL_QUESTIONS),
        "story": (heroes, STORY_QUESTIONS),
        "mail": (matters, MAIL_QUESTIONS),
        "pair": (words(PAIRS), PAIR_QUESTIONS),
        "code": (words(TASKS), TASK_QUESTIONS),
    }
    found = [
        Prompt(category, topic, question, question.format(x=topic))
        for category, (topics, questions) in crossed.items()
        for topic in topics
        for question in words(questions)
    ]
    rng = random.Random(f"sums {seed}")
    for _ in range(700):
        a, b, c = rng.randint(3, 60), rng.randint(61, 99), rng.randint(2, 9)
        question = rng.choice(words(SUMS))
        # A sum's topic is its first number, so a number can be left out like any topic.
        found.append(Prompt("math", str(a), question, question.format(a=a, b=b, c=c)))
    return list({p.text: p for p in found if p.text not in TURNS}.values())


def divide(prompts: list[Prompt], seed: int, unseen: float = 0.055, held: float = 0.02) -> list[Prompt]:
    """``prompts`` with their splits.

    A share ``unseen`` of each category's topics (of a story's heroes, of a letter's matters) is left out of
    training altogether; a share ``held`` of the rest is left out pair by pair.
    """
    rng = random.Random(f"divide {seed}")
    out: set[tuple[str, str]] = set()
    for category in sorted({p.category for p in prompts}):
        topics = sorted({stem(p) for p in prompts if p.category == category})
        out |= {(category, topic) for topic in rng.sample(topics, max(1, round(unseen * len(topics))))}

    def split(p: Prompt) -> str:
        if (p.category, stem(p)) in out:
            return "unseen"
        return "held" if rng.random() < held else "train"

    return [replace(p, split=split(p)) for p in prompts]


def settle(prompts: list[Prompt]) -> list[Prompt]:
    """The same once it is known which prompts have replies.

    A held-out pair's topic and wording must both be there in training; a pair too rare goes there itself.
    """
    train = [p for p in prompts if p.split == "train"]
    topics, questions = {(p.category, stem(p)) for p in train}, {p.question for p in train}
    return [
        p
        if p.split != "held" or ((p.category, stem(p)) in topics and p.question in questions)
        else replace(p, split="train")
        for p in prompts
    ]


def stem(p: Prompt) -> str:
    """What has to be new for a topic to be unseen: the hero of a story, the matter of a letter."""
    if p.category == "story":
        return p.topic.split()[-1]
    return p.topic.split(" about ")[-1] if p.category == "mail" else p.topic
