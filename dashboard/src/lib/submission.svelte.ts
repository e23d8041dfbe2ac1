// A form whose input the node checks.

import { tick } from 'svelte';
import { errorText } from './access';
import { Problem } from './api';
import { errorsByField } from './integration';

/** Runs the requests of a form, and shows their errors at the fields. Bind `form` to the element. */
export class Submission {
  /** Errors by the names of the fields. */
  errors = $state<Record<string, string>>({});
  /** Error that belongs to no field. */
  wrong = $state('');
  busy = $state(false);
  form = $state<HTMLFormElement>();
  #fields: () => readonly string[];

  /** `fields` are the names of all fields of the form. */
  constructor(fields: () => readonly string[]) {
    this.#fields = fields;
  }

  /** Forgets the errors, and runs `request`. The first field with an error of it gets the focus. */
  async run(request: () => Promise<void>) {
    this.busy = true;
    this.wrong = '';
    this.errors = {};
    try {
      await request();
    } catch (error) {
      this.#refuse(error);
    } finally {
      this.busy = false;
    }
  }

  #refuse(error: unknown) {
    if (!(error instanceof Problem)) {
      this.wrong = errorText(error);
      return;
    }
    const { fields, rest } = errorsByField(error.errors, new Set(this.#fields()));
    this.errors = fields;
    this.wrong = Object.keys(fields).length > 0 ? rest.join('\n') : [error.message, ...rest.filter((line) => !error.message.includes(line))].join('\n');
    void tick().then(() => this.form?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus());
  }
}
