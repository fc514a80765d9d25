// Repositories that many people use: the commit that is taken where nobody names one, and the prompts that their authors
// ask for where the files do not say them. A commit stands here only with a source: the revisions with which mteb
// 2.26.24 (PyPI, 2026-11) pins its models, as are the dimensions and licences. None was fetched from here, so digests
// are those of the hub's own list at the time of the first pull; the store keeps them. What serves an architecture
// stands in docs/models.md: a row here promises nothing about it.

export interface KnownHubModel {
  readonly repository: string;
  /** `model_type` of its config.json; "static" for models of a table of vectors alone. */
  readonly architecture: string;
  readonly dims: number | undefined;
  /** SPDX identifier, or the hub's word. */
  readonly licence: string;
  /** Where nobody names a revision; undefined: main at the first pull. */
  readonly commit: string | undefined;
  /** Where the files name none. */
  readonly prompts: Prompts | undefined;
  readonly kind: 'embedder' | 'reranker';
}

type Prompts = Readonly<Record<'query' | 'passage', string>>;

const RETRIEVE = 'Given a web search query, retrieve relevant passages that answer the query';
const E5: Prompts = { query: 'query: ', passage: 'passage: ' };
const INSTRUCT: Prompts = { query: `Instruct: ${RETRIEVE}\nQuery: `, passage: '' };
/** Without a blank after the colon, as its authors write it. */
const QWEN3: Prompts = { query: `Instruct: ${RETRIEVE}\nQuery:`, passage: '' };
const BGE: Prompts = { query: 'Represent this sentence for searching relevant passages: ', passage: '' };
const BGE_ZH: Prompts = { query: '为这个句子生成表示以用于检索相关文章：', passage: '' };
const NOMIC: Prompts = { query: 'search_query: ', passage: 'search_document: ' };
const ARCTIC: Prompts = { query: 'query: ', passage: '' };
const GEMMA: Prompts = { query: 'task: search result | query: ', passage: 'title: none | text: ' };

type Row = readonly [
  repository: string,
  architecture: string,
  dims: number | undefined,
  licence: string,
  commit: string | undefined,
  prompts?: Prompts | undefined,
  kind?: KnownHubModel['kind'],
];

const ROWS: readonly Row[] = [
  ['sentence-transformers/all-MiniLM-L6-v2', 'bert', 384, 'apache-2.0', '8b3219a92973c328a8e22fadcfa821b5dc75636a'],
  ['sentence-transformers/all-MiniLM-L12-v2', 'bert', 384, 'apache-2.0', '364dd28d28dcd3359b537f3cf1f5348ba679da62'],
  ['sentence-transformers/all-mpnet-base-v2', 'mpnet', 768, 'apache-2.0', '9a3225965996d404b775526de6dbfe85d3368642'],
  [
    'sentence-transformers/multi-qa-MiniLM-L6-cos-v1',
    'bert',
    384,
    'apache-2.0',
    'b207367332321f8e44f96e224ef15bc607f4dbf0',
  ],
  [
    'sentence-transformers/multi-qa-mpnet-base-dot-v1',
    'mpnet',
    768,
    'unknown',
    '3af7c6da5b3e1bea796ef6c97fe237538cbe6e7f',
  ],
  [
    'sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2',
    'bert',
    384,
    'apache-2.0',
    'e8f8c211226b894fcb81acc59f3b34ba3efd5f42',
  ],
  [
    'sentence-transformers/paraphrase-multilingual-mpnet-base-v2',
    'xlm-roberta',
    768,
    'apache-2.0',
    '79f2382ceacceacdf38563d7c5d16b9ff8d725d6',
  ],
  ['sentence-transformers/LaBSE', 'bert', 768, 'apache-2.0', 'e34fab64a3011d2176c99545a93d5cbddc9a91b7'],
  [
    'sentence-transformers/static-similarity-mrl-multilingual-v1',
    'static',
    1024,
    'apache-2.0',
    '7264ea07c5365a11d7e6d87dbb6195889a13054f',
  ],
  ['BAAI/bge-small-en-v1.5', 'bert', 384, 'mit', '5c38ec7c405ec4b44b94cc5a9bb96e735b38267a', BGE],
  ['BAAI/bge-base-en-v1.5', 'bert', 768, 'mit', 'a5beb1e3e68b9ab74eb54cfd186867f64f240e1a', BGE],
  ['BAAI/bge-large-en-v1.5', 'bert', 1024, 'mit', 'd4aa6901d3a41ba39fb536a557fa166f842b0e09', BGE],
  ['BAAI/bge-small-zh-v1.5', 'bert', 512, 'mit', '7999e1d3359715c523056ef9478215996d62a620', BGE_ZH],
  ['BAAI/bge-base-zh-v1.5', 'bert', 768, 'mit', 'f03589ceff5aac7111bd60cfc7d497ca17ecac65', BGE_ZH],
  ['BAAI/bge-large-zh-v1.5', 'bert', 1024, 'mit', '79e7739b6ab944e86d6171e44d24c997fc1e0116', BGE_ZH],
  ['BAAI/bge-m3', 'xlm-roberta', 1024, 'mit', '5617a9f61b028005a4858fdac845db406aefb181'],
  ['intfloat/e5-small-v2', 'bert', 384, 'mit', 'dca8b1a9dae0d4575df2bf423a5edb485a431236', E5],
  ['intfloat/e5-base-v2', 'bert', 768, 'mit', '1c644c92ad3ba1efdad3f1451a637716616a20e8', E5],
  ['intfloat/e5-large-v2', 'bert', 1024, 'mit', 'b322e09026e4ea05f42beadf4d661fb4e101d311', E5],
  ['intfloat/multilingual-e5-small', 'bert', 384, 'mit', 'fd1525a9fd15316a2d503bf26ab031a61d056e98', E5],
  ['intfloat/multilingual-e5-base', 'xlm-roberta', 768, 'mit', 'd13f1b27baf31030b7fd040960d60d909913633f', E5],
  ['intfloat/multilingual-e5-large', 'xlm-roberta', 1024, 'mit', 'ab10c1a7f42e74530fe7ae5be82e6d4f11a719eb', E5],
  [
    'intfloat/multilingual-e5-large-instruct',
    'xlm-roberta',
    1024,
    'mit',
    'baa7be480a7de1539afce709c8f13f833a510e0a',
    INSTRUCT,
  ],
  ['intfloat/e5-mistral-7b-instruct', 'mistral', 4096, 'mit', '07163b72af1488142a360786df853f237b1a3ca1', INSTRUCT],
  ['thenlper/gte-small', 'bert', 384, 'mit', '17e1f347d17fe144873b1201da91788898c639cd'],
  ['thenlper/gte-base', 'bert', 768, 'mit', 'c078288308d8dee004ab72c6191778064285ec0c'],
  ['thenlper/gte-large', 'bert', 1024, 'mit', '4bef63f39fcc5e2d6b0aae83089f307af4970164'],
  ['Alibaba-NLP/gte-base-en-v1.5', 'new', 768, 'apache-2.0', 'a829fd0e060bb84554da0dfd354d0de0f7712b7f'],
  ['Alibaba-NLP/gte-multilingual-base', 'new', 768, 'apache-2.0', 'ca1791e0bcc104f6db161f27de1340241b13c5a4'],
  ['Alibaba-NLP/gte-modernbert-base', 'modernbert', 768, 'apache-2.0', '7ca8b4ca700621b67618669f5378fe5f5820b8e4'],
  ['nomic-ai/nomic-embed-text-v1', 'nomic_bert', 768, 'apache-2.0', '0759316f275aa0cb93a5b830973843ca66babcf5', NOMIC],
  [
    'nomic-ai/nomic-embed-text-v1.5',
    'nomic_bert',
    768,
    'apache-2.0',
    'b0753ae76394dd36bcfb912a46018088bca48be0',
    NOMIC,
  ],
  [
    'nomic-ai/modernbert-embed-base',
    'modernbert',
    768,
    'apache-2.0',
    '5960f1566fb7cb1adf1eb6e816639cf4646d9b12',
    NOMIC,
  ],
  ['mixedbread-ai/mxbai-embed-large-v1', 'bert', 1024, 'apache-2.0', '990580e27d329c7408b3741ecff85876e128e203', BGE],
  ['mixedbread-ai/mxbai-embed-xsmall-v1', 'bert', 384, 'apache-2.0', '2f741ec33328bb57e4704e1238fc59a4a5745705'],
  ['Snowflake/snowflake-arctic-embed-xs', 'bert', 384, 'apache-2.0', '742da4f66e1823b5b4dbe6c320a1375a1fd85f9e', BGE],
  ['Snowflake/snowflake-arctic-embed-s', 'bert', 384, 'apache-2.0', 'd3c1d2d433dd0fdc8e9ca01331a5f225639e798f', BGE],
  ['Snowflake/snowflake-arctic-embed-m', 'bert', 768, 'apache-2.0', 'cc17beacbac32366782584c8752220405a0f3f40', BGE],
  ['Snowflake/snowflake-arctic-embed-l', 'bert', 1024, 'apache-2.0', '9a9e5834d2e89cdd8bb72b64111dde496e4fe78c', BGE],
  [
    'Snowflake/snowflake-arctic-embed-m-v1.5',
    'bert',
    768,
    'apache-2.0',
    '97eab2e17fcb7ccb8bb94d6e547898fa1a6a0f47',
    BGE,
  ],
  [
    'Snowflake/snowflake-arctic-embed-m-v2.0',
    'gte',
    768,
    'apache-2.0',
    'f2a7d59d80dfda5b1d14f096f3ce88bb6bf9ebdc',
    ARCTIC,
  ],
  [
    'Snowflake/snowflake-arctic-embed-l-v2.0',
    'xlm-roberta',
    1024,
    'apache-2.0',
    'edc2df7b6c25794b340229ca082e7c78782e6374',
    ARCTIC,
  ],
  ['Qwen/Qwen3-Embedding-0.6B', 'qwen3', 1024, 'apache-2.0', 'b22da495047858cce924d27d76261e96be6febc0', QWEN3],
  ['Qwen/Qwen3-Embedding-4B', 'qwen3', 2560, 'apache-2.0', '636cd9bf47d976946cdbb2b0c3ca0cb2f8eea5ff', QWEN3],
  ['Qwen/Qwen3-Embedding-8B', 'qwen3', 4096, 'apache-2.0', '4e423935c619ae4df87b646a3ce949610c66241c', QWEN3],
  ['google/embeddinggemma-300m', 'gemma3_text', 768, 'gemma', '64614b0b8b64f0c6c1e52b07e4e9a4e8fe4d2da2', GEMMA],
  ['jinaai/jina-embeddings-v2-small-en', 'jina_bert', 512, 'apache-2.0', '44e7d1d6caec8c883c2d4b207588504d519788d0'],
  ['jinaai/jina-embeddings-v2-base-en', 'jina_bert', 768, 'apache-2.0', '6e85f575bc273f1fd840a658067d0157933c83f0'],
  ['jinaai/jina-embeddings-v3', 'xlm-roberta', 1024, 'cc-by-nc-4.0', '215a6e121fa0183376388ac6b1ae230326bfeaed'],
  [
    'ibm-granite/granite-embedding-30m-english',
    'roberta',
    384,
    'apache-2.0',
    'eddbb57470f896b5f8e2bfcb823d8f0e2d2024a5',
  ],
  [
    'ibm-granite/granite-embedding-125m-english',
    'roberta',
    768,
    'apache-2.0',
    'e48d3a5b47eaa18e3fe07d4676e187fd80f32730',
  ],
  [
    'ibm-granite/granite-embedding-107m-multilingual',
    'xlm-roberta',
    384,
    'apache-2.0',
    '47db56afe692f731540413c67dd818ff492277e7',
  ],
  [
    'ibm-granite/granite-embedding-278m-multilingual',
    'xlm-roberta',
    768,
    'apache-2.0',
    '84e3546b88b0cb69f8078608a1df558020bcbf1f',
  ],
  [
    'ibm-granite/granite-embedding-small-english-r2',
    'modernbert',
    384,
    'apache-2.0',
    '54a8d2616a0844355a5164432d3f6dafb37b17a3',
  ],
  [
    'ibm-granite/granite-embedding-english-r2',
    'modernbert',
    768,
    'apache-2.0',
    '6e7b8ce0e76270394ac4669ba4bbd7133b60b7f9',
  ],
  ['avsolatorio/GIST-small-Embedding-v0', 'bert', 384, 'mit', 'd6c4190f9e01b9994dc7cac99cf2f2b85cfb57bc'],
  ['WhereIsAI/UAE-Large-V1', 'bert', 1024, 'mit', '369c368f70f16a613f19f5598d4f12d9f44235d4', BGE],
  ['minishlab/potion-base-8M', 'static', 256, 'mit', 'bf8b056651a2c21b8d2565580b8569da283cab23'],
  ['minishlab/potion-retrieval-32M', 'static', 512, 'mit', '6fc8051fab2a1e0ee76689cf08c853792ac285e7'],
  ['minishlab/potion-multilingual-128M', 'static', 256, 'mit', '73908c3438cf03b6a01bcb9611d62b23d0726f08'],
  [
    'cross-encoder/ms-marco-MiniLM-L6-v2',
    'bert',
    undefined,
    'unknown',
    'c5ee24cb16019beea0893ab7796b1df96625c6b8',
    undefined,
    'reranker',
  ],
  [
    'cross-encoder/ms-marco-MiniLM-L12-v2',
    'bert',
    undefined,
    'unknown',
    '7b0235231ca2674cb8ca8f022859a6eba2b1c968',
    undefined,
    'reranker',
  ],
  [
    'cross-encoder/ms-marco-TinyBERT-L2-v2',
    'bert',
    undefined,
    'unknown',
    '81d1926f67cb8eee2c2be17ca9f793c7c3bd20cc',
    undefined,
    'reranker',
  ],
  ['BAAI/bge-reranker-base', 'xlm-roberta', undefined, 'unknown', undefined, undefined, 'reranker'],
  [
    'BAAI/bge-reranker-v2-m3',
    'xlm-roberta',
    undefined,
    'unknown',
    '953dc6f6f85a1b2dbfca4c34a2796e7dde08d41e',
    undefined,
    'reranker',
  ],
  [
    'mixedbread-ai/mxbai-rerank-xsmall-v1',
    'deberta-v2',
    undefined,
    'apache-2.0',
    'b5c6e9da73abc3711f593f705371cdbe9e0fe422',
    undefined,
    'reranker',
  ],
  [
    'mixedbread-ai/mxbai-rerank-base-v1',
    'deberta-v2',
    undefined,
    'apache-2.0',
    '800f24c113213a187e65bde9db00c15a2bb12738',
    undefined,
    'reranker',
  ],
  [
    'jinaai/jina-reranker-v2-base-multilingual',
    'xlm-roberta',
    undefined,
    'unknown',
    '126747772a932960028d9f4dc93bd5d9c4869be4',
    undefined,
    'reranker',
  ],
  ['Alibaba-NLP/gte-multilingual-reranker-base', 'new', undefined, 'unknown', undefined, undefined, 'reranker'],
  ['Alibaba-NLP/gte-reranker-modernbert-base', 'modernbert', undefined, 'unknown', undefined, undefined, 'reranker'],
];

export const KNOWN_HUB_MODELS: readonly KnownHubModel[] = ROWS.map(
  ([repository, architecture, dims, licence, commit, prompts, kind = 'embedder']) => ({
    repository,
    architecture,
    dims,
    licence,
    commit,
    prompts,
    kind,
  }),
);

/** The hub takes either spelling of a letter. */
export function knownHubModel(repository: string): KnownHubModel | undefined {
  const name = repository.toLowerCase();
  return KNOWN_HUB_MODELS.find((known) => known.repository.toLowerCase() === name);
}
