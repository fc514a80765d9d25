// The way of every action: a page that says what will happen, with counts, and a form there that does it. GET changes
// nothing; POST needs an operator and the form's token, and leaves a line in the audit.

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { ShoalError } from '@shoal/contract';
import type { NewAuditEntry } from '@shoal/queue';
import { fieldOf, refuse, visitorOf, type Gate } from '../access/gate.ts';
import type { Visitor } from '../access/visitor.ts';
import { html } from '../page/html.ts';
import { page } from '../page/layout.ts';
import { ACTIONS, isAction, type ActionName, type ActionTools, type Asked, type Done, type Plan } from './plans.ts';

export interface ActionRoutesParts {
  readonly gate: Gate;
  readonly tools: ActionTools;
  readonly audit: (entry: NewAuditEntry) => Promise<void>;
}

/** As the command line calls them. */
const AUDITED_AS: Readonly<Record<ActionName, string>> = {
  pause: 'queue pause',
  resume: 'queue resume',
  drain: 'fleet drain',
  claim: 'fleet resume',
  retry: 'queue retry',
  cancel: 'queue cancel',
  return: 'queue quarantine return',
  drop: 'queue quarantine drop',
};

export function addActions(app: FastifyInstance, parts: ActionRoutesParts): void {
  app.get<{ Params: { name: string } }>('/act/:name', async (request, reply) => {
    const visitor = visitorOf(request);
    if (visitor.role !== 'operator')
      return refuse(reply, 403, 'Not yours to do', 'This needs an operator; you may look.');
    const asked = askedIn(new URLSearchParams(request.url.split('?')[1] ?? ''));
    await answered(request.params.name, reply, async (name) => {
      const plan = await ACTIONS[name](asked, parts.tools);
      await reply.type('text/html').send(confirmPage(name, asked, plan, visitor));
    });
  });
  app.post<{ Params: { name: string } }>('/act/:name', async (request, reply) => {
    if (!(await parts.gate.mayAct(request, reply))) return;
    const asked = askedIn(request.body);
    await answered(request.params.name, reply, async (name) => {
      const plan = await ACTIONS[name](asked, parts.tools);
      const done = await plan.run();
      await reply
        .type('text/html')
        .send(donePage(plan, done, await noted(parts, name, asked, done, request), visitorOf(request)));
    });
  });
}

/** Undefined: it is in the audit; else why it is not, while the action was done all the same. */
async function noted(
  { audit }: ActionRoutesParts,
  name: ActionName,
  { queue }: Asked,
  { ids, count, details }: Done,
  request: FastifyRequest,
): Promise<string | undefined> {
  const who = visitorOf(request).who ?? 'nobody';
  try {
    await audit({ who, program: 'dashboard', what: AUDITED_AS[name], queue, ids, count, details });
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** What cannot be done is a page that says why. */
async function answered(name: string, reply: FastifyReply, act: (name: ActionName) => Promise<void>): Promise<void> {
  if (!isAction(name)) return refuse(reply, 404, 'No such action', `There is ${Object.keys(ACTIONS).join(', ')}.`);
  try {
    await act(name);
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    await refuse(reply, error.code === 'USAGE' ? 400 : 503, 'It was not done', error.message);
  }
}

function askedIn(told: unknown): Asked {
  const ids = told instanceof URLSearchParams ? told.getAll('id') : [];
  return {
    queue: fieldOf(told, 'queue'),
    worker: fieldOf(told, 'worker'),
    code: fieldOf(told, 'code').trim(),
    ids: [...new Set(ids.flatMap((id) => (id === '' ? [] : [id])))],
  };
}

function confirmPage(
  name: ActionName,
  { queue, worker, ids: asked, code }: Asked,
  plan: Plan,
  visitor: Visitor,
): string {
  const ids = plan.ids ?? asked;
  const hidden = [
    ['csrf', visitor.csrf],
    ['queue', queue],
    ['worker', worker],
    ['code', code],
    ...ids.map((id) => ['id', id]),
  ];
  return page({
    title: plan.title,
    visitor,
    body: html`<h1>${plan.title}?</h1>
      <div class="card">
        ${plan.sentences.map((sentence) => html`<p>${sentence}</p>`)}
        <p class="soft">On the command line: <code>${plan.command}</code></p>
        ${
          plan.count === 0
            ? html`<p><strong>There is nothing to do.</strong></p>`
            : html`<form method="post" action="/act/${name}">
                ${hidden.map(([field, value]) => html`<input type="hidden" name="${field}" value="${value}" />`)}
                <div class="row">
                  <button class="${plan.isHarm ? 'harm' : 'go'}" type="submit">
                    ${plan.isHarm ? 'Yes, for good' : 'Yes, do it'}
                  </button>
                  <a class="button" href="/">No, back</a>
                </div>
              </form>`
        }
      </div>`,
  });
}

function donePage(plan: Plan, { said, ids }: Done, unnoted: string | undefined, visitor: Visitor): string {
  return page({
    title: plan.title,
    visitor,
    body: html`<h1>${plan.title}</h1>
      <p class="notice fine" role="status">${said}.</p>
      ${unnoted !== undefined && html`<p class="notice serious">This was done and is not in the audit: ${unnoted}</p>`}
      ${ids.length > 0 && html`<p class="soft">${ids.slice(0, 20).join(', ')}${ids.length > 20 && ` and ${ids.length - 20} more`}</p>`}
      <p><a href="/">To the fleet</a></p>`,
  });
}
