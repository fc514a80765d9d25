// Where something that rises, and was measured with noise, passes 0. Pure.

/**
 * Where the values of [place, value], by place, pass 0: of the steps that are nearest to them and never fall (isotonic
 * regression, by pooling adjacent violators: Ayer and others, 1955), straight between two steps. Infinity: nowhere;
 * −Infinity: before the first.
 */
export function risingZero(points: readonly (readonly [place: number, value: number])[]): number {
  const steps: { last: number; sum: number; count: number }[] = [];
  for (const [last, [, value]] of points.entries()) {
    let step = { last, sum: value, count: 1 };
    for (
      let before = steps.at(-1);
      before !== undefined && before.sum / before.count >= step.sum / step.count;
      before = steps.at(-1)
    ) {
      steps.pop();
      step = { last, sum: before.sum + step.sum, count: before.count + step.count };
    }
    steps.push(step);
  }
  const at = steps.findIndex(({ sum }) => sum > 0);
  if (at <= 0) return at === 0 ? -Infinity : Infinity;
  const [low, high] = [steps[at - 1]!, steps[at]!];
  const [lowValue, highValue] = [low.sum / low.count, high.sum / high.count];
  const [from, to] = [points[low.last]![0], points[low.last + 1]![0]];
  return from - ((to - from) * lowValue) / (highValue - lowValue);
}
