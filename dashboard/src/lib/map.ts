// Where the nodes of a cluster are drawn, in pixels: cores on a ring, replicants outside it next to the core that they hear through,
// and a label wherever it lies over nothing else.

import type { Member, Pair } from './cluster';

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Label extends Box {
  lines: string[];
}

export interface Spot {
  member: Member;
  x: number;
  y: number;
  /** Half of its width. */
  size: number;
  /** `null`: it would lie over something else. */
  label: Label | null;
}

export interface Line {
  pair: Pair;
  from: Spot;
  to: Spot;
  /** Round trip and load, where there is room for them. */
  label: Label | null;
}

export interface Layout {
  width: number;
  height: number;
  spots: Spot[];
  lines: Line[];
  /** Links of replicants that are well are left out, but for those of the node in focus. */
  thinned: boolean;
}

/** Below this width the map is as high as it is wide, and labels stand above and below. */
const NARROW = 560;
/** With more links, those of replicants that are well would hide the others. */
const LINKS_MAX = 15;
const CORE = 17;
const REPLICANT = 16;
const LINE = 14;
const CHARACTER = 6.9;
const CHARACTERS_MAX = 20;
const GAP = 3;
const TURNS = 8;

const cut = (text: string) => (text.length > CHARACTERS_MAX ? `${text.slice(0, CHARACTERS_MAX - 1)}…` : text);
const lies = (one: Box, other: Box) => one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height;
const around = (x: number, y: number, size: number): Box => ({ x: x - size, y: y - size, width: 2 * size, height: 2 * size });
const sized = (lines: string[]) => ({ width: Math.max(...lines.map((line) => line.length)) * CHARACTER + 4, height: lines.length * LINE + 2 });

interface Place {
  x: number;
  y: number;
}

interface Ring {
  x: number;
  y: number;
  across: number;
  up: number;
}

const on = (ring: Ring, angle: number): Place => ({ x: ring.x + Math.cos(angle) * ring.across, y: ring.y + Math.sin(angle) * ring.up });

/** How far a point is from the line between two others. */
function apart(point: Place, from: Place, to: Place): number {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = dx * dx + dy * dy;
  const along = length === 0 ? 0 : Math.min(1, Math.max(0, ((point.x - from.x) * dx + (point.y - from.y) * dy) / length));
  return Math.hypot(point.x - from.x - along * dx, point.y - from.y - along * dy);
}

/** Angles of the cores, the first at the top; two stand beside each other. */
function angles(cores: number): number[] {
  const begin = cores === 2 ? Math.PI : -Math.PI / 2;
  return Array.from({ length: cores }, (_, i) => begin + (2 * Math.PI * i) / cores);
}

function places(cores: Member[], others: Member[], pairs: Pair[], outer: Ring): Map<string, Place> {
  const share = others.length === 0 ? 0.82 : 0.47;
  // Without replicants the ring is a circle as far as there is room.
  const inner: Ring = { ...outer, across: (others.length === 0 ? Math.min(outer.across, outer.up * 1.7) : outer.across) * share, up: outer.up * share };
  const of = angles(cores.length);
  const placed = new Map<string, Place>();
  cores.forEach((core, i) => placed.set(core.name, cores.length === 1 ? { x: outer.x, y: outer.y } : on(inner, of[i]!)));
  if (others.length === 0) return placed;

  // Two of them do not stand opposite each other, with what is between them on one line.
  const step = (2 * Math.PI) / Math.max(3, others.length);
  const attached = (member: Member) => member.info?.cluster?.attached_to;
  // The first of them stand behind the core that they hear through, and so do the others where each core has as many.
  const core = cores.findIndex((one) => one.name === attached(others[0]!));
  const beside = others.filter((other) => attached(other) === attached(others[0]!)).length;
  const begin = (of[Math.max(0, core)] ?? -Math.PI / 2) - ((beside - 1) / 2) * step;
  // Turned so that no link runs through a node that is not its end.
  let best: { room: number; of: Map<string, Place> } | undefined;
  for (let turn = 0; turn < TURNS; turn++) {
    const tried = new Map(placed);
    others.forEach((other, i) => tried.set(other.name, on(outer, begin + step * (i + turn / TURNS))));
    let room = Infinity;
    for (const pair of pairs) {
      const [from, to] = [tried.get(pair.a), tried.get(pair.b)];
      if (!from || !to) continue;
      for (const [name, place] of tried) if (name !== pair.a && name !== pair.b) room = Math.min(room, apart(place, from, to));
    }
    // More than this is no better, and the smallest turn leaves replicants nearest to their cores.
    room = Math.min(room, 2 * CORE);
    if (!best || room > best.room + 1) best = { room, of: tried };
  }
  return best?.of ?? placed;
}

/** Those of these boxes that lie within the map and over nothing. */
function free(boxes: Box[], taken: Box[], width: number, height: number): Box[] {
  return boxes.filter((box) => box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height && !taken.some((other) => lies(box, other)));
}

/** Whether a line runs through a box. */
function runsThrough(box: Box, from: Place, to: Place): boolean {
  // What is left of the line after each side of the box has cut off what lies beyond it.
  let [enter, leave] = [0, 1];
  for (const [begin, way, low, high] of [
    [from.x, to.x - from.x, box.x, box.x + box.width],
    [from.y, to.y - from.y, box.y, box.y + box.height],
  ] as const) {
    if (way === 0) {
      if (begin < low || begin > high) return false;
      continue;
    }
    const [one, other] = [(low - begin) / way, (high - begin) / way];
    enter = Math.max(enter, Math.min(one, other));
    leave = Math.min(leave, Math.max(one, other));
  }
  return enter < leave;
}

/** The box that the fewest lines run through, those that matter most counting twice; of equals, the first. */
function clearest(boxes: Box[], lines: Line[]): Box | undefined {
  const weight = (box: Box) => lines.reduce((sum, line) => sum + (runsThrough(box, line.from, line.to) ? (line.pair.attached || line.pair.health !== 'good' ? 2 : 1) : 0), 0);
  let best: { box: Box; weight: number } | undefined;
  for (const box of boxes) {
    const own = weight(box);
    if (!best || own < best.weight) best = { box, weight: own };
  }
  return best?.box;
}

/** Left, right, below or above a spot, in a map that is `width` wide; what points away from the middle comes first. */
function nextTo(spot: Spot, middle: Place, size: { width: number; height: number }, width: number): Box[] {
  const { x, y } = spot;
  const off = spot.size + GAP;
  const right = { x: x + off, y: y - size.height / 2, ...size };
  const left = { x: x - off - size.width, y: y - size.height / 2, ...size };
  const start = Math.max(0, Math.min(width - size.width, x - size.width / 2));
  const below = { x: start, y: y + off, ...size };
  const above = { x: start, y: y - off - size.height, ...size };
  const [across, down] = [x - middle.x, y - middle.y];
  const side = across < 0 ? [left, right] : [right, left];
  const end = down < 0 ? [above, below] : [below, above];
  return Math.abs(across) > 1.2 * Math.abs(down) ? [...side, ...end] : [end[0]!, ...side, end[1]!];
}

export function layout(members: Member[], pairs: Pair[], width: number, focus: string | null, said: (pair: Pair) => string[]): Layout {
  const narrow = width < NARROW;
  const cores = members.filter((member) => member.role === 'core');
  const turnOf = (member: Member) => {
    const index = cores.findIndex((core) => core.name === member.info?.cluster?.attached_to);
    return index < 0 ? cores.length : index;
  };
  const others = members.filter((member) => member.role !== 'core').sort((a, b) => turnOf(a) - turnOf(b));
  const height = narrow ? Math.max(260, width) : others.length > 12 ? 540 : 440;
  const edge = narrow ? 38 : 150;
  const middle = { x: width / 2, y: height / 2 };
  const outer: Ring = { ...middle, across: Math.min(440, width / 2 - edge), up: height / 2 - (narrow ? 46 : 54) };
  const place = places(cores, others, pairs, outer);
  const spots = [...cores, ...others].map((member): Spot => ({ member, ...place.get(member.name)!, size: member.role === 'core' ? CORE : REPLICANT, label: null }));

  const thinned = pairs.length > LINKS_MAX;
  const at = new Map(spots.map((spot) => [spot.member.name, spot]));
  const of = (pair: Pair) => pair.a === focus || pair.b === focus;
  const lost = (name: string) => pairs.every((pair) => pair.health === 'bad' || (pair.a !== name && pair.b !== name));
  const all = pairs.flatMap((pair): Line[] => {
    const [from, to] = [at.get(pair.a), at.get(pair.b)];
    return from && to ? [{ pair, from, to, label: null }] : [];
  });
  const always = all.filter(({ pair, from, to }) => {
    if (!thinned || pair.attached) return true;
    if (from.member.role === 'core' && to.member.role === 'core') return true;
    if (pair.health === 'good') return false;
    // Of a node that nobody hears, its links to the cores say enough.
    return from.member.role === 'core' || to.member.role === 'core' || !(lost(pair.a) || lost(pair.b));
  });
  const lines = all.filter((line) => of(line.pair) || always.includes(line));

  const taken = spots.map((spot) => around(spot.x, spot.y, spot.size + GAP - 1));
  const several = new Set(members.map((member) => member.region)).size > 1;
  for (const [i, spot] of spots.entries()) {
    const told = [cut(spot.member.name), ...(several && spot.member.region ? [cut(spot.member.region)] : [])];
    const others = taken.filter((_, other) => other !== i);
    // What the focus is on moves no label.
    for (const tried of told.length > 1 ? [told, told.slice(0, 1)] : [told]) {
      const box = clearest(free(nextTo(spot, middle, sized(tried), width), others, width, height), always);
      if (!box) continue;
      spot.label = { ...box, lines: tried };
      taken.push(box);
      break;
    }
  }
  for (const line of lines) {
    const told = said(line.pair).filter(Boolean);
    if (told.length === 0 || (thinned && !of(line.pair))) continue;
    const size = sized(told);
    const boxes = [0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73].map((share) => ({ x: line.from.x + (line.to.x - line.from.x) * share - size.width / 2, y: line.from.y + (line.to.y - line.from.y) * share - size.height / 2, ...size }));
    const box = free(boxes, taken, width, height)[0];
    if (!box) continue;
    line.label = { ...box, lines: told };
    taken.push(box);
  }
  return { width, height, spots, lines, thinned };
}

/** Where something of this size is shown next to a place, within the map. */
export function within(map: Layout, at: Place, size: { width: number; height: number }): Box {
  const clamp = (value: number, max: number) => Math.max(2, Math.min(max - 2, value));
  const above = at.y - CORE - 6 - size.height;
  return { x: clamp(at.x - size.width / 2, map.width - size.width), y: above >= 2 ? above : clamp(at.y + CORE + 6, map.height - size.height), ...size };
}

export const LINE_HEIGHT = LINE;
export const CHARACTER_WIDTH = CHARACTER;
