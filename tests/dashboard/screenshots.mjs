export async function screenshots() {}
