"""The words that name quantities: who has them, and what is counted. All other words stand in `wordings`."""

PEOPLE = (
    "Mia", "Tom", "Ann", "Ben", "Eva", "Leo", "Amy", "Sam", "Lucy", "Max", "Nina", "Omar", "Emma", "Noah", "Rosa",
    "Paul", "Clara", "Adam", "Sara", "Jack",
)  # fmt: skip

PLACES = ("farm", "shop", "school", "library", "museum", "hotel", "bakery", "garden")
"""Always told with an article: the farm."""

HOLDERS = (*PEOPLE, *(f"the {place}" for place in PLACES))

THINGS = (
    "coins", "books", "apples", "pens", "cups", "stamps", "shells", "cards", "eggs", "lamps", "keys", "hats", "toys",
    "rings", "stones", "marbles",
)  # fmt: skip

CONTAINERS = {"boxes": "box", "bags": "bag", "jars": "jar", "baskets": "basket", "trays": "tray", "shelves": "shelf"}
"""Things that hold other things, as many in each: plural and singular."""

COUNTED = (*THINGS, *CONTAINERS)
