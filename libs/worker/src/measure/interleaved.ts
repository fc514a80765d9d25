// Lists measured side by side: a moment in which somebody else wants the machine slows all of them alike.

/** The items of all lists, those of each spread evenly over the whole. */
export function interleaved<Item>(lists: readonly (readonly Item[])[]): Item[] {
  return lists
    .flatMap((items, place) =>
      items.map((item, i) => ({ item, at: (i + (place + 0.5) / lists.length) / items.length })),
    )
    .sort((a, b) => a.at - b.at)
    .map(({ item }) => item);
}
