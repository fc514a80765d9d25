// The model that made some vectors, as files say it: name@revision under one key of an Arrow schema's metadata.
// `shoal embed` writes it there, `shoal index build` reads it. Where nothing is said, the model is not known.

export const MODEL_KEY = 'shoal.model';

/** What a file says, undefined when it says nothing that could be a model. */
export function modelText(said: unknown): string | undefined {
  return typeof said === 'string' && /^[A-Za-z0-9][\w.-]{0,127}(@[\w.-]{1,128})?$/.test(said) ? said : undefined;
}
