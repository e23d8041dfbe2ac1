// Parts of an OpenAPI 3.1 document that the API page shows.

export interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  example?: unknown;
  examples?: unknown[];
  minimum?: number;
  maximum?: number;
  oneOf?: Schema[];
  anyOf?: Schema[];
  allOf?: Schema[];
  additionalProperties?: boolean | Schema;
  prefixItems?: Schema[];
}

export interface Parameter {
  name: string;
  in: 'path' | 'query' | 'header' | 'cookie';
  required?: boolean;
  description?: string;
  schema?: Schema;
}

type Content = Record<string, { schema?: Schema; example?: unknown }>;

export interface RawOperation {
  tags?: string[];
  summary?: string;
  description?: string;
  operationId?: string;
  security?: Record<string, string[]>[];
  parameters?: (Parameter | { $ref: string })[];
  requestBody?: { required?: boolean; description?: string; content?: Content; $ref?: string };
  responses?: Record<string, { description?: string; content?: Content; $ref?: string }>;
}

export interface Document {
  openapi: string;
  info: { title: string; version: string; description?: string };
  tags?: { name: string; description?: string }[];
  paths: Record<string, Record<string, RawOperation> & { parameters?: Parameter[] }>;
  components?: Record<string, Record<string, unknown>>;
}

export interface Operation {
  id: string;
  tag: string;
  method: string;
  path: string;
  summary: string;
  description: string;
  /** Minimum role of the caller; empty: no token is needed. */
  role: string;
  parameters: Parameter[];
  body: { required: boolean; schema: Schema | null; example: unknown } | null;
  responses: { status: string; description: string; schema: Schema | null; type: string }[];
}

export function resolve<T>(document: Document, thing: T | { $ref?: string }): T {
  let now: unknown = thing;
  for (let depth = 0; depth < 10; depth++) {
    const ref = (now as { $ref?: string } | undefined)?.$ref;
    if (!ref?.startsWith('#/')) break;
    now = ref
      .slice(2)
      .split('/')
      .reduce<unknown>((at, part) => (at as Record<string, unknown> | undefined)?.[part.replaceAll('~1', '/').replaceAll('~0', '~')], document);
  }
  return (now ?? {}) as T;
}

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];

export function operations(document: Document): Operation[] {
  const all: Operation[] = [];
  for (const [path, item] of Object.entries(document.paths)) {
    for (const method of METHODS) {
      const raw = item[method];
      if (!raw) continue;
      const body = raw.requestBody ? resolve<NonNullable<RawOperation['requestBody']>>(document, raw.requestBody) : null;
      const media = body?.content?.['application/json'] ?? Object.values(body?.content ?? {})[0];
      all.push({
        id: raw.operationId ?? `${method}-${path}`,
        tag: raw.tags?.[0] ?? 'other',
        method: method.toUpperCase(),
        path,
        summary: raw.summary ?? '',
        description: raw.description ?? '',
        role: Object.values(raw.security?.[0] ?? {})[0]?.[0] ?? '',
        parameters: [...(item.parameters ?? []), ...(raw.parameters ?? [])].map((one) => resolve<Parameter>(document, one)).filter((one) => one.in === 'path' || one.in === 'query'),
        body: body ? { required: body.required ?? false, schema: media?.schema ?? null, example: media?.example } : null,
        responses: Object.entries(raw.responses ?? {}).map(([status, one]) => {
          const response = resolve<NonNullable<RawOperation['responses']>[string]>(document, one);
          const [type = '', content] = Object.entries(response.content ?? {})[0] ?? [];
          return { status, description: response.description ?? '', schema: content?.schema ?? null, type };
        }),
      });
    }
  }
  return all;
}

/** Example value of a schema. */
export function example(document: Document, schema: Schema | null, depth = 0): unknown {
  if (!schema || depth > 6) return null;
  const at = resolve<Schema>(document, schema);
  if (at.example !== undefined) return at.example;
  if (at.examples?.[0] !== undefined) return at.examples[0];
  if (at.default !== undefined) return at.default;
  if (at.const !== undefined) return at.const;
  if (at.enum?.[0] !== undefined) return at.enum[0];
  if (at.allOf) return Object.assign({}, ...at.allOf.map((one) => example(document, one, depth + 1) ?? {}));
  const choice = (at.oneOf ?? at.anyOf)?.find((one) => resolve<Schema>(document, one).type !== 'null');
  if (choice) return example(document, choice, depth + 1);
  const type = Array.isArray(at.type) ? at.type.find((one) => one !== 'null') : at.type;
  if (type === 'object' || at.properties) {
    const must = new Set(at.required ?? []);
    const entries = Object.entries(at.properties ?? {}).filter(([name]) => must.size === 0 || must.has(name));
    return Object.fromEntries(entries.map(([name, one]) => [name, example(document, one, depth + 1)]));
  }
  if (type === 'array') return at.items ? [example(document, at.items, depth + 1)] : [];
  if (type === 'integer' || type === 'number') return at.minimum ?? 0;
  if (type === 'boolean') return false;
  if (type === 'string') return '';
  return null;
}

/** Short text for a type: `string or null`, `array of Client`, `0 | 1 | 2`. */
export function typeOf(document: Document, schema: Schema | null | undefined): string {
  if (!schema) return '';
  if (schema.$ref) return schema.$ref.split('/').at(-1) ?? '';
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(' | ');
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const several = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (several) return several.map((one) => typeOf(document, one)).join(schema.allOf ? ' and ' : ' or ');
  if (schema.type === 'array' || schema.items) return `array of ${typeOf(document, schema.items) || 'anything'}`;
  const type = Array.isArray(schema.type) ? schema.type.join(' or ') : (schema.type ?? (schema.properties ? 'object' : 'anything'));
  const range = schema.minimum !== undefined || schema.maximum !== undefined ? ` ${schema.minimum ?? ''}..${schema.maximum === undefined ? '' : `=${schema.maximum}`}` : '';
  return `${type}${range}`;
}
