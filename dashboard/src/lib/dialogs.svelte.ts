// One question at a time: `await confirm({...})` shows it and says what was answered.

export interface Question {
  title: string;
  text: string;
  action: string;
  danger?: boolean;
  /** A box to tick along with the answer. */
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
