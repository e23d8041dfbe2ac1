// Input of the action editor that is not saved. It stays while the dashboard is open, so that a look at another page loses nothing.

import type { Values } from './integration';

export interface ActionDraft {
  name: string;
  description: string;
  enabled: boolean;
  rule: string;
  connector: string;
  values: Values;
}

const drafts = new Map<string, ActionDraft>();

export const draftOf = (key: string): ActionDraft | undefined => drafts.get(key);
export const keepDraft = (key: string, draft: ActionDraft) => void drafts.set(key, draft);
export const dropDraft = (key: string) => void drafts.delete(key);
