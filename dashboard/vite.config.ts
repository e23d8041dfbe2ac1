import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

// Writes the licences of all bundled packages to one text file, which the help dialog links to.
function notices(): Plugin {
  return {
    name: 'notices',
    apply: 'build',
    generateBundle(_options, bundle) {
      const packages = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== 'chunk') continue;
        for (const [id, module] of Object.entries(chunk.modules)) {
          const name = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1];
          if (name && module.renderedLength > 0) packages.add(name);
        }
      }
      const texts = [...packages].sort().map((name) => {
        const dir = join(import.meta.dirname, 'node_modules', name);
        const { license } = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
        let text = `Licence: ${license}`;
        for (const file of ['LICENSE.md', 'LICENSE', 'license', 'LICENCE']) {
          try {
            text = readFileSync(join(dir, file), 'utf8').trim();
            break;
          } catch {
            // Try the next name.
          }
        }
        return `${name} (${license})\n\n${text}\n`;
      });
      this.emitFile({
        type: 'asset',
        fileName: 'assets/third-party.txt',
        source: `Parts of the files in assets/ come from these packages.\n\n${texts.join('\n----\n\n')}`,
      });
    },
  };
}

export default defineConfig({
  plugins: [svelte(), notices()],
  build: {
    outDir: process.env.DASHBOARD_OUT ?? '../crates/api/dashboard',
    emptyOutDir: true,
    target: 'es2022',
    // The Content-Security-Policy is default-src 'self': no data: URLs and no inline content.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 600,
  },
  server: {
    // members.ts imports the texts of `meridian ctl cluster` from outside dashboard/.
    fs: { allow: ['..'] },
    proxy: { '/api': { target: process.env.MERIDIAN_URL ?? 'http://127.0.0.1:18083' }, '/health': { target: process.env.MERIDIAN_URL ?? 'http://127.0.0.1:18083' } },
  },
});
