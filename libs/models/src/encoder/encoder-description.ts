// What an encoder computes, as one plain object: every switch in which the families of encoders differ, said outright.
// Made by describe-encoder.ts from config.json; graphs, the native encoder and their references read it and nothing
// else. All sizes are checked: whoever has a description may build from it.

export interface EncoderDescription {
  /** As config.json spells it. */
  readonly modelType: string;
  readonly layers: number;
  readonly heads: number;
  /** Heads of keys and values; `heads` is a multiple of it, and neighbouring heads of queries share one. */
  readonly kvHeads: number;
  /** Values of a head; `heads` times this need not be `hidden`. */
  readonly headSize: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly vocabularySize: number;
  /** Longest row in tokens, special ones included. */
  readonly rowLimit: number;
  readonly embeddings: EmbeddingsDescription;
  readonly positions: PositionsDescription;
  readonly attentionPositions: AttentionPositions;
  readonly norm: NormDescription;
  readonly attention: AttentionDescription;
  readonly feedForward: FeedForwardDescription;
  readonly names: TensorNames;
  /** Set for a static model: it has no layers, and a token's state is its row of a table. Sizes and this are all it is. */
  readonly table?: TableDescription;
}

/** How a static model (model2vec) finds a token's row; `vocabularySize` has one id more than its tokens, for texts without any. */
export interface TableDescription {
  /** Name of the tensor [rows, hidden]. */
  readonly name: string;
  readonly rows: number;
  /** The tensor "mapping" [tokens] has the row of each token; else a token's id is its row. */
  readonly hasMapping: boolean;
  /** The tensor "weights" [tokens] has a factor for each token's row. */
  readonly hasWeights: boolean;
  readonly texts: StaticTexts;
}

/** What the package of a static model does to texts besides tokenizing. */
export interface StaticTexts {
  /** A text is cut behind this many code points for each token that a row may have; undefined: it is not. */
  readonly charsPerToken: number | undefined;
  /** Unknown tokens are left out of a row, after it was cut. */
  readonly dropsUnknown: boolean;
  /** Stands for a text without a token: its row is zeros. The last id of the vocabulary. */
  readonly emptyId: number;
}

export interface EmbeddingsDescription {
  /** Width of the tables; other than `hidden` only with a projection. */
  readonly size: number;
  /** Rows of the word table are multiplied by it. */
  readonly scale: number;
  /** Rows of the table of token types, of which the first is added to every token; 0: there is no such table. */
  readonly tokenTypes: number;
  readonly hasNorm: boolean;
  /** A linear layer from `size` to `hidden`, after the norm. */
  readonly hasProjection: boolean;
}

/** Rows of a table that are added to the words by their place. */
export type PositionsDescription =
  | { readonly kind: 'none' }
  | {
      readonly kind: 'learned';
      /** Rows of the table. */
      readonly rows: number;
      /** The row of the first token. */
      readonly first: number;
      /**
       * A token with this id has row `padId` wherever it stands, and those after it are not moved by it: the padding
       * token spelled out in a text. Undefined: every token counts.
       */
      readonly padId: number | undefined;
    };

/** What attention knows of places. */
export type AttentionPositions =
  | { readonly kind: 'none' }
  /** Queries and keys are turned: value i of a head's first half goes with value i of its second half. */
  | {
      readonly kind: 'rope';
      /** One for each layer. */
      readonly thetas: readonly number[];
      /** One for each layer: what is done to its frequencies; undefined: nothing. */
      readonly scalings: readonly (AngleScaling | undefined)[];
    }
  /** One learned number for each head and bucket of distances, added to scores; the same in all layers. T5's buckets. */
  | { readonly kind: 'buckets'; readonly buckets: number; readonly farthest: number };

/** How angles of a model that was trained at shorter rows are made to reach further; graph/frequencies.ts computes it. */
export type AngleScaling =
  /** All frequencies are divided by it. */
  | { readonly kind: 'divided'; readonly factor: number }
  /** Llama 3: frequencies that turn seldom within the rows of the training are divided, those that turn often are kept. */
  | {
      readonly kind: 'llama3';
      readonly factor: number;
      /** A value that turns less often than this in `trainedRows` tokens is divided by `factor`. */
      readonly lowTurns: number;
      /** One that turns more often is left alone; between the two it is mixed. */
      readonly highTurns: number;
      /** Tokens. */
      readonly trainedRows: number;
    }
  /** YaRN (https://arxiv.org/abs/2309.00071): the same with a ramp over the places of values in a head. */
  | {
      readonly kind: 'yarn';
      readonly factor: number;
      /** Turns in `trainedRows` tokens above which a value is left alone. */
      readonly fastTurns: number;
      /** And below which it is divided by `factor`. */
      readonly slowTurns: number;
      /** Whether the ramp begins and ends at whole places. */
      readonly isRampWhole: boolean;
      /** Tokens. */
      readonly trainedRows: number;
      /** Cosines and sines are multiplied by it. */
      readonly magnitude: number;
    };

export interface NormDescription {
  /** Layer: less the mean, by the deviation. Rms: by the root of the mean square. */
  readonly kind: 'layer' | 'rms';
  readonly hasBias: boolean;
  /** The factor is 1 + weight. */
  readonly isPlusOne: boolean;
  readonly epsilon: number;
  /** After: norm(x + f(x)). Before: x + f(norm(x)). Around: x + norm(f(norm(x))). */
  readonly placement: 'after' | 'before' | 'around';
  /** Whether the first layer's attention has its norm before it. */
  readonly isBeforeFirst: boolean;
  /** Whether one follows the last layer. */
  readonly isLast: boolean;
}

export interface AttentionDescription {
  /** A token sees itself and those before it. */
  readonly isCausal: boolean;
  /** One for each layer: the largest distance that a token sees, to each side; undefined: all. */
  readonly windows: readonly (number | undefined)[];
  /** Scores are multiplied by it. */
  readonly scale: number;
  /** Each head's queries and keys are normed, before they are turned. */
  readonly hasQueryKeyNorm: boolean;
  /** Of queries, keys and values. */
  readonly hasBias: boolean;
  readonly hasOutputBias: boolean;
}

export const ACTIVATIONS = ['gelu', 'gelu-tanh', 'silu', 'relu'] as const;
export type Activation = (typeof ACTIVATIONS)[number];

export interface FeedForwardDescription {
  /** Plain: down(act(up(x))). Gated: down(act(gate(x)) · up(x)). */
  readonly kind: 'plain' | 'gated';
  readonly activation: Activation;
  /** Of `up` and `gate`. */
  readonly hasBias: boolean;
  readonly hasDownBias: boolean;
}

/**
 * Names of tensors in the file, behind any prefix that comes before all of them; linear layers and norms without
 * ".weight" and ".bias". Those of a layer begin behind `layer`.
 */
export interface TensorNames {
  /** With ".weight": the prefix is found by this one. */
  readonly words: string;
  /** With ".weight". */
  readonly positions?: string;
  /** With ".weight". */
  readonly types?: string;
  readonly embeddingNorm?: string;
  readonly projection?: string;
  /** With ".weight": [buckets, heads]. */
  readonly buckets?: string;
  readonly lastNorm?: string;
  /** What names of a layer begin with; "{l}" is the number of the layer, and without one all layers share weights. */
  readonly layer: string;
  /** Apart, or all three under each other in one matrix. */
  readonly queryKeyValue:
    | { readonly kind: 'apart'; readonly query: string; readonly key: string; readonly value: string }
    | { readonly kind: 'fused'; readonly name: string };
  readonly output: string;
  readonly queryNorm?: string;
  readonly keyNorm?: string;
  readonly attentionNorm: string;
  /** With norms around both halves. */
  readonly attentionNormAfter?: string;
  readonly feedForwardNorm: string;
  readonly feedForwardNormAfter?: string;
  /** Gate and up are apart, or under each other in one matrix. */
  readonly up:
    | { readonly kind: 'plain'; readonly name: string }
    | { readonly kind: 'apart'; readonly gate: string; readonly up: string }
    | { readonly kind: 'fused'; readonly name: string; readonly isGateFirst: boolean };
  readonly down: string;
  /** Tensors behind the prefix that are rightly without a use: heads of pre-training, buffers. */
  readonly withoutUse: RegExp;
  /** What tensors of the encoder begin with, so that a surplus one is told from a head. */
  readonly encoder: RegExp;
}
