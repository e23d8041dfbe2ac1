import type { Component } from 'svelte';
import Missing from './Missing.svelte';
import Overview from './Overview.svelte';

const pages: Record<string, Component> = {
  overview: Overview,
};

export const pageOf = (id: string): Component => (Object.hasOwn(pages, id) ? pages[id]! : Missing);
