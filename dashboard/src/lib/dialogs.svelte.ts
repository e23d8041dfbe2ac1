// Confirmation dialogs, one at a time: `await confirm({...})` shows a question and returns the answer.

export interface Question {
  title: string;
  text: string;
  action: string;
  danger?: boolean;
  /** Label of a check box in the dialog. */
  option?: string;
}

export interface Answer {
  yes: boolean;
  option: boolean;
}

class Dialogs {
  question = $state.raw<Question | null>(null);
  help = $state(false);
  #resolve: ((answer: Answer) => void) | undefined;

  ask(question: Question): Promise<Answer> {
    this.answer({ yes: false, option: false });
    this.question = question;
    return new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  answer(answer: Answer) {
    this.question = null;
    this.#resolve?.(answer);
    this.#resolve = undefined;
  }
}

export const dialogs = new Dialogs();

export const confirm = async (question: Question) => (await dialogs.ask(question)).yes;
