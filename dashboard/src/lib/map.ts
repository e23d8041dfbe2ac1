// Layout of the map of a cluster, in pixels: cores on a ring, replicants outside it near their core, and labels that
// overlap nothing else.

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
  /** Half of the width. */
  size: number;
  /** `null`: there is no room for it. */
  label: Label | null;
}

export interface Line {
  pair: Pair;
  from: Spot;
  to: Spot;
  /** Round trip and load; `null`: there is no room for them. */
  label: Label | null;
}

export interface Layout {
  width: number;
  height: number;
  spots: Spot[];
  lines: Line[];
  /** Healthy links of replicants are left out, except those of the focused node. */
  thinned: boolean;
}

/** Width below which the map is square, and labels are above and below the nodes. */
const NARROW = 560;
/** Number of links above which healthy links of replicants are left out. */
const LINKS_MAX = 15;
const CORE = 17;
const REPLICANT = 16;
const LINE = 14;
const CHARACTER = 6.9;
const CHARACTERS_MAX = 20;
const GAP = 3;
const ROTATIONS = 8;

const cut = (text: string) => (text.length > CHARACTERS_MAX ? `${text.slice(0, CHARACTERS_MAX - 1)}…` : text);
const overlap = (one: Box, other: Box) => one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height;
const around = (x: number, y: number, size: number): Box => ({ x: x - size, y: y - size, width: 2 * size, height: 2 * size });
const sized = (lines: string[]) => ({ width: Math.max(...lines.map((line) => line.length)) * CHARACTER + 4, height: lines.length * LINE + 2 });

interface Point {
  x: number;
  y: number;
}

interface Ring {
  x: number;
  y: number;
  across: number;
  up: number;
}

const on = (ring: Ring, angle: number): Point => ({ x: ring.x + Math.cos(angle) * ring.across, y: ring.y + Math.sin(angle) * ring.up });

/** Distance of a point from the line between two others. */
function distance(point: Point, from: Point, to: Point): number {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = dx * dx + dy * dy;
  const along = length === 0 ? 0 : Math.min(1, Math.max(0, ((point.x - from.x) * dx + (point.y - from.y) * dy) / length));
  return Math.hypot(point.x - from.x - along * dx, point.y - from.y - along * dy);
}

/** Angles of the cores, the first one at the top; two cores are side by side. */
function angles(cores: number): number[] {
  const begin = cores === 2 ? Math.PI : -Math.PI / 2;
  return Array.from({ length: cores }, (_, i) => begin + (2 * Math.PI * i) / cores);
}

function positions(cores: Member[], others: Member[], pairs: Pair[], outer: Ring): Map<string, Point> {
  const share = others.length === 0 ? 0.82 : 0.47;
  // Without replicants the ring is a circle if there is room.
  const inner: Ring = { ...outer, across: (others.length === 0 ? Math.min(outer.across, outer.up * 1.7) : outer.across) * share, up: outer.up * share };
  const of = angles(cores.length);
  const placed = new Map<string, Point>();
  cores.forEach((core, i) => placed.set(core.name, cores.length === 1 ? { x: outer.x, y: outer.y } : on(inner, of[i]!)));
  if (others.length === 0) return placed;

  // With at least three positions, two replicants are never opposite each other in line with the cores.
  const step = (2 * Math.PI) / Math.max(3, others.length);
  const attached = (member: Member) => member.info?.cluster?.attached_to;
  // The replicants of the first core are centred behind it. With equal numbers per core, so are all the others.
  const core = cores.findIndex((one) => one.name === attached(others[0]!));
  const siblings = others.filter((other) => attached(other) === attached(others[0]!)).length;
  const begin = (of[Math.max(0, core)] ?? -Math.PI / 2) - ((siblings - 1) / 2) * step;
  // The rotation with the largest distance between nodes and links of other nodes wins.
  let best: { room: number; of: Map<string, Point> } | undefined;
  for (let rotation = 0; rotation < ROTATIONS; rotation++) {
    const tried = new Map(placed);
    others.forEach((other, i) => tried.set(other.name, on(outer, begin + step * (i + rotation / ROTATIONS))));
    let room = Infinity;
    for (const pair of pairs) {
      const [from, to] = [tried.get(pair.a), tried.get(pair.b)];
      if (!from || !to) continue;
      for (const [name, point] of tried) if (name !== pair.a && name !== pair.b) room = Math.min(room, distance(point, from, to));
    }
    // A larger distance is no better, and the smallest rotation keeps replicants nearest to their cores.
    room = Math.min(room, 2 * CORE);
    if (!best || room > best.room + 1) best = { room, of: tried };
  }
  return best?.of ?? placed;
}

/** Boxes that are inside the map and overlap nothing. */
function free(boxes: Box[], taken: Box[], width: number, height: number): Box[] {
  return boxes.filter((box) => box.x >= 0 && box.y >= 0 && box.x + box.width <= width && box.y + box.height <= height && !taken.some((other) => overlap(box, other)));
}

/** True if a line runs through a box. */
function runsThrough(box: Box, from: Point, to: Point): boolean {
  // Part of the line between each pair of parallel sides of the box.
  let [enter, leave] = [0, 1];
  for (const [begin, length, low, high] of [
    [from.x, to.x - from.x, box.x, box.x + box.width],
    [from.y, to.y - from.y, box.y, box.y + box.height],
  ] as const) {
    if (length === 0) {
      if (begin < low || begin > high) return false;
      continue;
    }
    const [one, other] = [(low - begin) / length, (high - begin) / length];
    enter = Math.max(enter, Math.min(one, other));
    leave = Math.min(leave, Math.max(one, other));
  }
  return enter < leave;
}

/** First box that the fewest lines run through. Attached and unhealthy links count twice. */
function clearest(boxes: Box[], lines: Line[]): Box | undefined {
  const weight = (box: Box) => lines.reduce((sum, line) => sum + (runsThrough(box, line.from, line.to) ? (line.pair.attached || line.pair.health !== 'good' ? 2 : 1) : 0), 0);
  let best: { box: Box; weight: number } | undefined;
  for (const box of boxes) {
    const own = weight(box);
    if (!best || own < best.weight) best = { box, weight: own };
  }
  return best?.box;
}

/** Boxes left, right, below and above a spot in a map of this width; the side away from the middle comes first. */
function nextTo(spot: Spot, middle: Point, size: { width: number; height: number }, width: number): Box[] {
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

export function layout(members: Member[], pairs: Pair[], width: number, focus: string | null, texts: (pair: Pair) => string[]): Layout {
  const narrow = width < NARROW;
  const cores = members.filter((member) => member.role === 'core');
  const coreIndex = (member: Member) => {
    const index = cores.findIndex((core) => core.name === member.info?.cluster?.attached_to);
    return index < 0 ? cores.length : index;
  };
  const others = members.filter((member) => member.role !== 'core').sort((a, b) => coreIndex(a) - coreIndex(b));
  const height = narrow ? Math.max(260, width) : others.length > 12 ? 540 : 440;
  const edge = narrow ? 38 : 150;
  const middle = { x: width / 2, y: height / 2 };
  const outer: Ring = { ...middle, across: Math.min(440, width / 2 - edge), up: height / 2 - (narrow ? 46 : 54) };
  const position = positions(cores, others, pairs, outer);
  const spots = [...cores, ...others].map((member): Spot => ({ member, ...position.get(member.name)!, size: member.role === 'core' ? CORE : REPLICANT, label: null }));

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
    // For an unreachable node, its links to the cores are enough.
    return from.member.role === 'core' || to.member.role === 'core' || !(lost(pair.a) || lost(pair.b));
  });
  const lines = all.filter((line) => of(line.pair) || always.includes(line));

  const taken = spots.map((spot) => around(spot.x, spot.y, spot.size + GAP - 1));
  const several = new Set(members.map((member) => member.region)).size > 1;
  for (const [i, spot] of spots.entries()) {
    const lines = [cut(spot.member.name), ...(several && spot.member.region ? [cut(spot.member.region)] : [])];
    const others = taken.filter((_, other) => other !== i);
    // The focus does not move labels.
    for (const tried of lines.length > 1 ? [lines, lines.slice(0, 1)] : [lines]) {
      const box = clearest(free(nextTo(spot, middle, sized(tried), width), others, width, height), always);
      if (!box) continue;
      spot.label = { ...box, lines: tried };
      taken.push(box);
      break;
    }
  }
  for (const line of lines) {
    const text = texts(line.pair).filter(Boolean);
    if (text.length === 0 || (thinned && !of(line.pair))) continue;
    const size = sized(text);
    const boxes = [0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73].map((share) => ({ x: line.from.x + (line.to.x - line.from.x) * share - size.width / 2, y: line.from.y + (line.to.y - line.from.y) * share - size.height / 2, ...size }));
    const box = free(boxes, taken, width, height)[0];
    if (!box) continue;
    line.label = { ...box, lines: text };
    taken.push(box);
  }
  return { width, height, spots, lines, thinned };
}

/** Box of this size near a point, inside the map. */
export function within(map: Layout, at: Point, size: { width: number; height: number }): Box {
  const clamp = (value: number, max: number) => Math.max(2, Math.min(max - 2, value));
  const above = at.y - CORE - 6 - size.height;
  return { x: clamp(at.x - size.width / 2, map.width - size.width), y: above >= 2 ? above : clamp(at.y + CORE + 6, map.height - size.height), ...size };
}

export const LINE_HEIGHT = LINE;
export const CHARACTER_WIDTH = CHARACTER;
