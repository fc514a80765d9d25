// Every setting, declared once: key, range, default and meaning. The key `maxPaddedTokens` is the environment variable
// SHOAL_MAX_PADDED_TOKENS, the flag --max-padded-tokens and a line of shoal.config.json; how these become the settings in
// force is config.ts.

import { z } from 'zod';

/**
 * Numbers as flags and variables give them: text. Null, true and lists in a file are not numbers, whatever Number()
 * makes of them.
 */
const count = (min: number, max: number) =>
  z.preprocess(
    (value) => (typeof value === 'string' ? Number(value.trim() || 'none') : value),
    z.number().int().min(min).max(max),
  );
const share = (min: number) =>
  z.preprocess(
    (value) => (typeof value === 'string' ? Number(value.trim() || 'none') : value),
    z.number().min(min).max(1),
  );
const durationMs = (min: number, max: number) => count(min, max);
const host = z.string().regex(/^[A-Za-z0-9_.:%-]{1,255}$/, 'must be a host name or an IP address');
const port = count(0, 65_535);

export const settingsSchema = z.strictObject({
  redisUrl: z
    .string()
    .regex(
      /^(rediss?(\+(sentinel|cluster))?|unix):\/\//,
      'must begin with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://',
    )
    .optional()
    .describe(
      'Queue server, e.g. redis://localhost:6379, redis+sentinel://host:26379,host:26379/mymaster or ' +
        'redis+cluster://host:6379,host:6379. Unset: a private server of this user is used, and started when ' +
        'there is none.',
    ),
  partFolders: z
    .string()
    .regex(
      /^\s*(\/|s3:\/\/[a-z0-9])[^,]*(,\s*(\/|s3:\/\/[a-z0-9])[^,]*)*$/,
      'must be absolute paths of folders, or s3://BUCKET/PREFIX, separated by commas',
    )
    .optional()
    .describe(
      'Folders, separated by commas, in which workers may read and write parts of files (docs/files.md), also ' +
        's3://BUCKET/PREFIX: with it a worker takes parts of runs, and reads and writes nothing outside of these. Unset: ' +
        'it takes none. All workers of a model that have it should see the same files under the same paths.',
    ),
  payloadServers: z
    .string()
    .regex(
      /^\s*(rediss?|file|s3):\/\/[^\s,]+(\s*,\s*(rediss?|file|s3):\/\/[^\s,]+)*\s*$/,
      'must be redis://, rediss://, s3:// or file:// URLs separated by commas',
    )
    .optional()
    .describe(
      'Valkey or Redis servers beside the queue server, separated by commas, through which large inputs and results of ' +
        'embedding travel: redis://10.0.0.5:6379,redis://10.0.0.6:6379. They need no append-only file, because what one ' +
        'loses is computed again. A bucket of S3 or of what speaks its protocol is one as well: s3://bucket/prefix; and ' +
        'a folder that all share: file:///mnt/shoal. The same for workers and producers, or everything goes by the ' +
        'queue server.',
    ),
  cells: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Several queue servers used as one queue, each with workers of its own: a JSON file, or its text, ' +
        '[{"name":"a","address":"redis://10.0.0.5:6379"},{"name":"b","address":"redis://10.0.0.6:6379","write":false}]. ' +
        'redisUrl says which of them is home; unset, the first. A cell with "write": false takes no new work. Or one cluster, ' +
        'as cells with the prefixes {shoal.0}, {shoal.1} …: redis+cluster://host:6379,host:6379?cells=6 (docs/cells.md). The ' +
        'file is read again while processes run.',
    ),
  redisCa: z
    .string()
    .min(1)
    .optional()
    .describe(
      'PEM file of the authority that signed the certificate of the queue server, for rediss://. Unset: those that ' +
        'Node trusts.',
    ),
  redisCert: z
    .string()
    .min(1)
    .optional()
    .describe('PEM file of the certificate by which the queue server knows us, where it asks for one.'),
  redisKey: z.string().min(1).optional().describe('PEM file of the key of redisCert, without a passphrase.'),
  redisServerName: z
    .string()
    .regex(/^[A-Za-z0-9_.-]{1,253}$/, 'must be a host name')
    .optional()
    .describe('Name in the certificate of the queue server, where it is not the host of redisUrl.'),
  redisPasswordFile: z
    .string()
    .min(1)
    .optional()
    .describe(
      'File whose one line is the password at the queue server, in place of one in redisUrl: neither the environment ' +
        'nor a list of processes then has it.',
    ),
  unsafeServer: z
    .enum(['refuse', 'warn'])
    .default('refuse')
    .describe(
      'What becomes of a queue server on which jobs can be lost unnoticed: one that evicts keys, or is too old.',
    ),
  prefix: z
    .string()
    .regex(/^\{[^{}]{1,64}\}$/, 'must be a hash tag such as {shoal}')
    .default('{shoal}')
    .describe('Prefix of every key; plain BullMQ producers pass the same one.'),
  model: z
    .string()
    .min(1)
    .max(256)
    .default('minilm')
    .describe(
      'Model that this worker or command uses: a name of the store, or ORG/NAME[@REVISION] of the Hugging Face hub, ' +
        'which commands fetch once.',
    ),
  kind: z
    .enum(['embed', 'similarity'])
    .default('embed')
    .describe(
      'Jobs that a worker serves: embed those of its model, similarity those of the queue similarity, on the ' +
        'collections of this machine.',
    ),
  device: z
    .string()
    .regex(
      /^(auto|cpu|gpu:\d+|sim:\d+(\+\d+)?|sim:[1-9]\d{0,3}GB)$/,
      'must be auto, cpu, gpu:<index>, sim:<tokens per ms> or sim:<memory>GB',
    )
    .default('auto')
    .describe(
      'Device of a worker. sim:8000 is a simulated one that computes nothing, at 8,000 tokens a millisecond ' +
        '(sim:8000+15: and 15 ms more for each run); sim:24GB has the speed of an H200 and 24 GB of memory to ' +
        'run out of; it serves its own queue, embed-<model>-sim.',
    ),
  simServes: z
    .enum(['itself', 'model'])
    .default('itself')
    .describe(
      'What a worker on a simulated device serves. model: for trials, the queue of the model, with vectors that ' +
        'are not the model’s; only under a prefix where no worker computes it (docs/operations.md).',
    ),
  precision: z
    .enum(['auto', 'fp32', 'fp16', 'bf16'])
    .default('auto')
    .describe(
      'What a GPU computes in. auto: fp16 where canary texts give the vectors of fp32 (cosine at least ' +
        '0.9999), else fp32. CPUs compute in fp32.',
    ),
  encoder: z
    .enum(['auto', 'native', 'ort'])
    .default('auto')
    .describe(
      'What computes on an NVIDIA GPU: native is Shoal\'s own encoder (fp16, BERT models; "shoal gpu install" ' +
        'builds it), ort is ONNX Runtime. auto: the native one where it was built and gives the vectors of fp32, ' +
        'else ONNX Runtime.',
    ),
  deviceSessions: count(1, 16)
    .optional()
    .describe(
      'Runs side by side: on a GPU one launches while another computes, on a CPU they divide its threads. ' +
        'Sessions of ONNX Runtime have a copy of the weights each, lanes of the native encoder share them. ' +
        'Unset: what shoal tune measured (native encoder), else 2 on cards of 40 GB and more, else 1; on a CPU ' +
        'one for every eight threads, 8 at most (docs/tuning.md).',
    ),
  workerName: z
    .string()
    .regex(/^[A-Za-z0-9_.-]{1,64}$/, 'must be 1 to 64 letters, digits, "_", "." and "-"')
    .optional()
    .describe(
      'What a worker is called over all its lives: one that starts under the name of one that died takes back ' +
        'what that one had claimed. A second one of a name that lives is refused. Default: host name and device, which ' +
        'several may share.',
    ),
  cacheDir: z
    .string()
    .min(1)
    .optional()
    .describe('Models, graphs and the private queue server. Default: $XDG_CACHE_HOME/shoal or ~/.cache/shoal.'),
  modelsDir: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Models, a folder each, apart from the rest of cacheDir; several machines may share it. Default: models in ' +
        'cacheDir.',
    ),
  modelsReadOnly: z
    .enum(['auto', 'yes'])
    .default('auto')
    .describe(
      'Whether modelsDir is only read; graphs, locks and what was verified go to cacheDir. auto: where it cannot be ' +
        'written.',
    ),
  collectionsDir: z
    .string()
    .min(1)
    .optional()
    .describe('Collections of vectors, a folder each. Default: collections in cacheDir.'),
  kernels: z
    .enum(['auto', 'avx512', 'avx2', 'neon', 'portable', 'plain'])
    .default('auto')
    .describe(
      'What computes similarity. auto: native code for the best instruction set of this machine, plain code ' +
        'where none was built. The answers are the same.',
    ),
  smallOnCpu: z
    .enum(['auto', 'never'])
    .default('auto')
    .describe(
      'What a similarity worker on a GPU compares on its CPU. auto: what is sooner done there, by times ' +
        'measured on this machine (shoal tune --kind similarity). never: only what the GPU could not do.',
    ),
  cudaLibrary: z
    .string()
    .min(1)
    .optional()
    .describe(
      'The CUDA kernels for similarity, a path. Unset: beside the native code, where ' +
        'native/similarity/build.sh cuda puts them.',
    ),
  gpuRetryMs: durationMs(100, 3_600_000)
    .default(30_000)
    .describe(
      'How long after the GPU of a similarity worker failed it is tried again, in a process of its own; each ' +
        'later time after twice as long.',
    ),
  threads: count(0, 1024)
    .default(0)
    .describe('Threads one run uses on the CPU; 0 means one per core that the process may use.'),
  tokenizerThreads: count(0, 64)
    .optional()
    .describe('Threads that tokenize jobs which came as text; 0: none. Unset: one for every four cores, at most 8.'),
  maxTokens: count(8, 8192)
    .optional()
    .describe(
      'Longest row in tokens, special tokens included. Unset: where the model’s authors truncate (256 for minilm).',
    ),
  maxPaddedTokens: count(16, 1 << 24)
    .optional()
    .describe(
      'Most padded tokens of a micro-batch: rows × width. Unset: what was measured of the device decides ' +
        '(shoal tune), or its preset.',
    ),
  maxRows: count(1, 65_536).optional().describe('Most rows of a micro-batch. Unset: 1,024 on a CPU, 16,384 on a GPU.'),
  memoryFraction: share(0.05)
    .default(0.8)
    .describe(
      'Share of the device’s memory, or of the process’s limit on a CPU, that this worker and all others may ' +
        'use together.',
    ),
  maxDeviceBytes: count(1 << 26, Number.MAX_SAFE_INTEGER)
    .optional()
    .describe('Most memory of its device that this worker counts on, bytes. Unset: all there is.'),
  latencyTargetMs: durationMs(1, 60_000)
    .default(100)
    .describe('While an interactive row waits, a micro-batch is to take no longer.'),
  poolTokens: count(16, 1 << 26)
    .optional()
    .describe(
      'Real tokens that claims keep waiting in the pool, so that rows of like length meet. More raises padding ' +
        'efficiency and latency under load. A GPU has up to as much again: what it eats until claimed jobs are ' +
        'there, and in 100 ms. Unset: 24,576 on a CPU, 1,310,720 on a GPU.',
    ),
  windowRows: count(1, 65_536)
    .default(64)
    .describe('So many rows in a short pool run at once, whatever the token budget would still take.'),
  maxWaitMs: durationMs(0, 10_000)
    .default(10)
    .describe('How long a short pool gathers rows before it runs at most; less where a run takes less.'),
  minRows: count(1, 4096)
    .default(8)
    .describe('After maxWaitMs a short pool runs with at least so many rows; after twice that with any.'),
  maxRowAgeMs: durationMs(1, 60_000)
    .default(250)
    .describe('A row older than this is in the next micro-batch, whatever its length.'),
  maxQueuedRows: count(1, Number.MAX_SAFE_INTEGER)
    .default(4_000_000)
    .describe('Rows of a queue that may wait or run; producers wait for room above it, HTTP answers 429.'),
  maxQueuedBytes: count(1 << 20, Number.MAX_SAFE_INTEGER)
    .optional()
    .describe(
      'Bytes of inputs and results, unread ones included, that all queues of a server may hold. Unset: 60 % of ' +
        'its maxmemory, or 30 % of its machine’s memory.',
    ),
  maxTenantShare: share(0.01)
    .default(0.8)
    .describe('Most of maxQueuedRows and maxQueuedBytes that one tenant may fill.'),
  maxMemoryShare: share(0.1)
    .default(0.8)
    .describe('Share of the queue server’s memory above which workers claim only one job after another.'),
  maxUnreadShare: share(0.05)
    .default(0.5)
    .describe('Share of the queue server’s memory that unread results may fill before workers stop claiming.'),
  leaseMs: durationMs(1_000, 600_000)
    .default(15_000)
    .describe('How long a claim lasts without renewal. Renewed at a third of this time.'),
  stalledCheckMs: durationMs(200, 600_000)
    .default(5_000)
    .describe('How often jobs whose lease ran out are looked for.'),
  executorTimeoutMs: durationMs(1_000, 3_600_000)
    .default(60_000)
    .describe('An executor that does not answer, or one run that lasts, this long is killed and its jobs run again.'),
  hybrid: z
    .enum(['auto', 'never', 'always'])
    .default('auto')
    .describe(
      'What a CPU worker takes from the main lane beside GPU workers. auto: what shortens the total time, ' +
        'everything while no GPU worker is alive, and some when the backlog is older than hybridAgeMs.',
    ),
  hybridAgeMs: durationMs(0, 86_400_000)
    .default(60_000)
    .describe('Age of the job that waits longest from which a CPU worker helps out whatever the rates.'),
  helpCells: z
    .enum(['yes', 'no'])
    .default('yes')
    .describe(
      'Where cells are listed: a worker that has nothing to do at home claims bulk jobs of the others, which stay ' +
        'theirs. no: it claims at home alone.',
    ),
  claimTimeoutMs: durationMs(1_000, 3_600_000)
    .default(30_000)
    .describe(
      'A worker that claims nothing for so long while jobs wait and nothing is paused ends with an error, so ' +
        'that its supervisor starts another.',
    ),
  janitorEveryMs: durationMs(10_000, 86_400_000)
    .default(600_000)
    .describe(
      'How often one of a queue’s workers takes away what nobody needs: inputs that had no job at two sweeps ' +
        'so far apart, results without a time to live, reservations of nobody; and puts damaged jobs right.',
    ),
  keepCompletedJobs: count(100, 1_000_000)
    .default(1_000)
    .describe(
      'How many completed jobs stay on the queue server, with the texts of those that carry them. A producer that asks ' +
        'after more have completed finds none.',
    ),
  keepFailedJobs: count(100, 1_000_000)
    .default(5_000)
    .describe('How many failed and cancelled jobs stay on the queue server, with the texts of those that carry them.'),
  keepFinishedMs: durationMs(0, 31_536_000_000)
    .default(0)
    .describe(
      'Finished jobs that ended longer ago are taken away at the next sweep (janitorEveryMs), however few there are, ' +
        'so that texts do not stay. 0: only their number counts.',
    ),
  drainTimeoutMs: durationMs(0, 3_600_000)
    .default(30_000)
    .describe('How long a stopping worker finishes what it has claimed before it gives the rest back.'),
  logLevel: z
    .enum(['silent', 'error', 'warn', 'info', 'debug'])
    .default('info')
    .describe('Least severe log line that is written.'),
  logFormat: z
    .enum(['auto', 'json', 'text'])
    .default('auto')
    .describe(
      'Form of log lines on standard error: one JSON object each, or text for people. auto: text on a terminal, JSON ' +
        'elsewhere. A container that is given a terminal wants json where a program reads its log.',
    ),
  traces: z
    .enum(['off', 'otlp'])
    .default('off')
    .describe(
      'Whether workers and HTTP send spans to an OpenTelemetry collector. otlp: to OTEL_EXPORTER_OTLP_ENDPOINT, of one ' +
        'trace in a hundred unless OTEL_TRACES_SAMPLER says otherwise (docs/observability.md).',
    ),
  httpHost: host
    .default('127.0.0.1')
    .describe(
      'Address the HTTP producer listens on. Beyond loopback it needs keys (shoal key create), or httpAccess open.',
    ),
  httpAccess: z
    .enum(['auto', 'keys', 'open'])
    .default('auto')
    .describe(
      'Whom HTTP asks for an API key. auto: everybody, once there are any or SHOAL_HTTP_MASTER_KEY is set; while there ' +
        'are none it answers without, and does not start on an address beyond loopback. keys: everybody in any case. ' +
        'open: nobody, wherever it listens, because something else asks who is there.',
    ),
  httpKeyFile: z
    .string()
    .min(1)
    .optional()
    .describe(
      'File of API keys (shoal key create writes it), instead of those that are kept on the queue server for all its ' +
        'HTTP processes. It is looked at every two seconds.',
    ),
  httpCors: z
    .string()
    .regex(
      /^(\*|https?:\/\/[A-Za-z0-9.[\]:-]+)(\s*,\s*(\*|https?:\/\/[A-Za-z0-9.[\]:-]+))*$/,
      'must be origins separated by commas, such as https://app.example.com, or *',
    )
    .optional()
    .describe(
      'Origins whose pages may ask HTTP from a browser (CORS), separated by commas, or * for all. Unset: none.',
    ),
  serve: z
    .string()
    .regex(
      /^[^\s,=@]+(=[^\s,=@]{1,128})?(\s*,\s*[^\s,=@]+(=[^\s,=@]{1,128})?)*$/,
      'must be models separated by commas, each MODEL or MODEL=ALIAS, such as bge-m3=text-embedding-3-small',
    )
    .optional()
    .describe(
      'Models that HTTP serves besides model, separated by commas, each MODEL or MODEL=ALIAS; the alias is another name ' +
        'that requests may call it by, and a model may be there several times for several. Each has its own queue and ' +
        'needs workers. While model is unset, the first of these is the model.',
    ),
  httpHosts: z
    .string()
    .regex(
      /^(\*|(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(\s*,\s*(\*|(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]))*$/,
      'must be host names separated by commas, such as embed.example.com, *.example.com for all below one, or *',
    )
    .optional()
    .describe(
      'Names that HTTP, dashboard and metrics are asked by besides those of loopback and the address they listen ' +
        'on: those of a proxy in front, for example. Other names are refused, because a web page can make one lead ' +
        'here. A server that listens beyond loopback also answers to IP addresses and the name of its machine.',
    ),
  httpPort: port.default(8787).describe('Port of the HTTP producer; 0 means any free one.'),
  requestTimeoutMs: durationMs(1_000, 3_600_000)
    .default(60_000)
    .describe('How long an HTTP request waits for its vectors before it is answered with 503.'),
  jobTexts: count(1, 1_024)
    .default(64)
    .describe(
      'Texts of a job that commands and HTTP make. More than 256 only while all live workers of the model take them, else 256: ' +
        'larger jobs cost the queue server less a text, and answer later.',
    ),
  maxOpenRequests: count(1, 65_536)
    .default(256)
    .describe(
      'Most HTTP requests that are answered at a time, each until its answer is written; more wait for their turn.',
    ),
  maxWaitingRequests: count(0, 1 << 20)
    .default(4_096)
    .describe(
      'Most HTTP requests that wait for their turn, each no longer than requestTimeoutMs; more are answered with 429 ' +
        'and the time to come back.',
    ),
  maxHttpBytes: count(1 << 20, Number.MAX_SAFE_INTEGER)
    .default(256 * 1024 * 1024)
    .describe(
      'Bytes of bodies and answers that HTTP holds for its callers at a time; requests beyond are answered with 429, ' +
        'or wait where it is their answers that are large.',
    ),
  maxHttpConnections: count(20, 1 << 20)
    .default(4_096)
    .describe(
      'Most connections that HTTP holds, fewer where the process may not open as many files; the idlest are closed ' +
        'for new ones.',
    ),
  httpTruncate: z
    .enum(['error', 'end'])
    .default('error')
    .describe(
      'What HTTP does with an input that has more tokens than the model takes, where the request has no field ' +
        'truncate: refuse it, as OpenAI does, or cut it at its end and say how many were cut.',
    ),
  readyNeedsWorkers: z
    .enum(['no', 'yes'])
    .default('no')
    .describe(
      'Whether /readyz of HTTP is 503 while no worker would compute: none is there, all are drained, or the queue ' +
        'is paused. no: it is ready as long as jobs are accepted and kept.',
    ),
  batchDir: z
    .string()
    .min(1)
    .refine((place) => !place.startsWith('s3://') || /^s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](\/|$)/.test(place), {
      message: 'must be a folder, or s3://BUCKET/FOLDER',
    })
    .optional()
    .describe(
      'Where HTTP keeps files, batches and jobs: a folder, or s3://BUCKET/FOLDER, which all HTTP processes share. ' +
        'Unset: batches in cacheDir.',
    ),
  batchS3Endpoint: z
    .string()
    .regex(/^https?:\/\//, 'must begin with http:// or https://')
    .optional()
    .describe('Address of a server that speaks S3’s protocol, for batchDir = s3://…. Unset: AWS.'),
  batchMaxFileBytes: count(1, Number.MAX_SAFE_INTEGER)
    .default(1 << 30)
    .describe('Most bytes of a file that is uploaded for a batch.'),
  batchMaxLines: count(1, 10_000_000).default(250_000).describe('Most lines of a batch.'),
  batchPartLines: count(0, 16_777_216)
    .default(65_536)
    .describe(
      'A batch with so many requests for vectors, whose files lie in the partFolders of all workers that take parts of ' +
        'its model, goes to them as parts of its file instead of through the queue server, each of an eighth of so many ' +
        'lines that are nearly all of one kind (docs/batches.md). 0: none does.',
    ),
  batchJobsInFlight: count(1, 4_096)
    .default(64)
    .describe('Times 64 rows that all batches and jobs of one HTTP process have on the queue at a time.'),
  batchRetentionDays: count(0, 3_650)
    .default(30)
    .describe('How long files are kept, and batches and jobs after their end; 0: until they are deleted.'),
  maxOpenBatches: count(1, 100_000).default(100).describe('Most batches of one tenant that have not ended.'),
  maxOpenJobs: count(1, 1_000_000)
    .default(10_000)
    .describe('Most jobs of one tenant, handed in at /v1/jobs, that have not ended.'),
  webhookSecret: z
    .string()
    .regex(/^whsec_[A-Za-z0-9+/]{32,86}={0,2}$/, 'must be "whsec_" and 24 to 64 random bytes in base64')
    .optional()
    .describe('What notices of batches and jobs are signed with where the request brings no secret of its own.'),
  webhookPrivate: z
    .enum(['no', 'yes'])
    .default('no')
    .describe('Whether webhooks may lead to addresses of this machine and its network.'),
  httpTokenRows: z
    .enum(['whole', 'bare'])
    .default('whole')
    .describe(
      'Token ids that HTTP takes. whole: rows of the model’s own tokenizer with its end tokens, such as [CLS] … ' +
        '[SEP], which no other tokenizer makes. bare: any ids of its vocabulary, with end tokens put around them; ' +
        'ids made for another model then get the vector of another text.',
    ),
  metricsHost: host.default('127.0.0.1').describe('Address a worker’s metrics are served on.'),
  metricsPort: port
    .default(9464)
    .describe(
      'Where a worker serves /metrics, /livez and /readyz: at this port, or the first free one of the hundred from it ' +
        'on; its log and `shoal fleet status --json` (metricsUrl) say which. 0 means nowhere. HTTP and the dashboard ' +
        'serve their own at their ports.',
    ),
  exporterHost: host
    .default('127.0.0.1')
    .describe('Address the fleet exporter listens on. There is no authentication: keep it where only scrapers are.'),
  exporterPort: port.default(9460).describe('Port of the fleet exporter, `shoal exporter`; 0 means any free one.'),
  dashboardHost: host
    .default('127.0.0.1')
    .describe(
      'Address the dashboard listens on. Without keys or a proxy that asks who comes, whoever reaches it may look.',
    ),
  dashboardPort: port.default(8788).describe('Port of the dashboard; 0 means any free one.'),
  dashboardKeyFile: z
    .string()
    .min(1)
    .optional()
    .describe(
      'File of the keys that the dashboard asks for (shoal key create --dashboard writes it): viewers look, operators ' +
        'act. Without it and without dashboardProxyHeader everybody may look and nobody act.',
    ),
  dashboardTexts: z
    .enum(['yes', 'no'])
    .default('no')
    .describe(
      'Whether the dashboard shows the beginning of the first text of a job that is searched for, put together from its ' +
        'tokens, to whoever may look.',
    ),
  dashboardProxyHeader: z
    .string()
    .regex(/^[A-Za-z0-9-]{1,64}$/, 'must be the name of a header, such as x-forwarded-user')
    .optional()
    .describe(
      'Header in which a proxy that asks people who they are tells the dashboard who comes. It counts only in requests ' +
        'from dashboardProxies.',
    ),
  dashboardProxies: z
    .string()
    .min(1)
    .optional()
    .describe('Addresses and networks of that proxy, separated by commas: 10.0.3.7, 10.0.0.0/8, ::1.'),
  dashboardOperators: z
    .string()
    .min(1)
    .optional()
    .describe(
      'Who of those that the proxy names may act on the dashboard: names or groups, separated by commas, as they stand ' +
        'in its header; * is everybody. The others look.',
    ),
});

export type Settings = z.infer<typeof settingsSchema>;
export type SettingKey = keyof Settings;
