// Commands of a runbook: what stands in its fences of the kind "sh look" or "sh cure", one a line.

/** Lines of all fences of a kind. */
export function commandsIn(page: string, kind: 'look' | 'cure'): readonly string[] {
  return [...page.matchAll(/^```sh (\w+)\n([\S\s]*?)^```$/gm)]
    .filter(([, found]) => found === kind)
    .flatMap(([, , lines = '']) => lines.split('\n').filter((line) => line !== ''));
}
