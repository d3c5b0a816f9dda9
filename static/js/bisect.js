/** The first whole number from `low` for which `holds`, else `high`. From there on it must hold for all. */
export function firstThat(low, high, holds) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
