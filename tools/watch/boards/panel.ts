// The part of Grafana's board format that our boards use (schema 39, Grafana 10 and later), as plain typed JSON. Its SDK
// for TypeScript is at 0.0 and would be 40 MB for three kinds of panel; Grafana fills in what is left out here.

/** One line of a graph. */
export interface Query {
  readonly expr: string;
  /** What the line is called; `{{label}}` is replaced by Grafana. */
  readonly legend: string;
}

/** Units of Grafana that we use. */
export type BoardUnit = 'short' | 's' | 'bytes' | 'percentunit' | 'ops' | 'reqps' | 'watt' | 'celsius';

export interface Panel {
  readonly title: string;
  /** One sentence: what it shows, and what to make of it. */
  readonly description: string;
  readonly kind: 'timeseries' | 'stat' | 'table';
  readonly unit: BoardUnit;
  readonly queries: readonly Query[];
}

export interface Board {
  /** The file's name and Grafana's uid. */
  readonly uid: string;
  readonly title: string;
  readonly description: string;
  /** Variables: a label, and the series that has its values. */
  readonly variables: readonly { readonly label: string; readonly of: string }[];
  readonly rows: readonly { readonly title: string; readonly panels: readonly Panel[] }[];
}

const DATASOURCE = { type: 'prometheus', uid: '${datasource}' };
const WIDTH = 24;
const HEIGHT = 8;

/** A board as Grafana imports it, with a variable for the data source. */
export function boardFile(board: Board): string {
  return `${JSON.stringify(boardOf(board), null, 2)}\n`;
}

function boardOf({ uid, title, description, variables, rows }: Board): object {
  let y = 0;
  let id = 0;
  const panels = rows.flatMap(({ title: heading, panels: inRow }) => {
    const row = {
      id: ++id,
      type: 'row',
      title: heading,
      collapsed: false,
      gridPos: { x: 0, y: y++, w: WIDTH, h: 1 },
      panels: [],
    };
    const width = WIDTH / inRow.length;
    const placed = inRow.map((panel, column) => panelOf(panel, ++id, { x: column * width, y, w: width, h: HEIGHT }));
    y += HEIGHT;
    return [row, ...placed];
  });
  return {
    uid: `shoal-${uid}`,
    title,
    description,
    tags: ['shoal'],
    schemaVersion: 39,
    editable: true,
    refresh: '30s',
    time: { from: 'now-3h', to: 'now' },
    templating: { list: [datasourceVariable, ...variables.map(variableOf)] },
    annotations: { list: [] },
    links: [
      { type: 'dashboards', title: 'Shoal', tags: ['shoal'], asDropdown: true, keepTime: true, includeVars: true },
    ],
    panels,
  };
}

const datasourceVariable = { name: 'datasource', type: 'datasource', query: 'prometheus', label: 'Prometheus' };

function variableOf({ label, of }: Board['variables'][number]): object {
  const query = `label_values(${of}, ${label})`;
  return {
    name: label,
    label,
    type: 'query',
    datasource: DATASOURCE,
    definition: query,
    query: { query, refId: label },
    refresh: 2,
    multi: true,
    includeAll: true,
    allValue: '.*',
    current: { text: 'All', value: '$__all' },
    sort: 1,
  };
}

function panelOf({ title, description, kind, unit, queries }: Panel, id: number, gridPos: object): object {
  return {
    id,
    type: kind,
    title,
    description,
    datasource: DATASOURCE,
    gridPos,
    fieldConfig: { defaults: { unit, ...(kind === 'timeseries' ? { min: 0 } : {}) }, overrides: [] },
    options:
      kind === 'timeseries'
        ? { legend: { displayMode: 'list', placement: 'bottom' }, tooltip: { mode: 'multi', sort: 'desc' } }
        : {},
    targets: queries.map(({ expr, legend }, index) => ({
      refId: String.fromCodePoint(65 + index),
      datasource: DATASOURCE,
      expr,
      legendFormat: legend,
      ...(kind === 'table' ? { instant: true, format: 'table' } : {}),
    })),
  };
}

/** Every expression of a board, with the panel it belongs to. */
export function expressionsOf({ rows }: Board): readonly { readonly panel: string; readonly expr: string }[] {
  return rows.flatMap(({ panels }) =>
    panels.flatMap(({ title, queries }) => queries.map(({ expr }) => ({ panel: title, expr }))),
  );
}
