// The body of the request that submits a job, from the texts of its form. An empty text leaves its member out.
export function jobRequest({ program, dataset, feeds, loss, optimizer, rate, epochs, batch, seed, priority, fraction, patience, keep, shuffle, name }) {
  return {
    program_id: program, loss: loss.trim(), optimizer: { type: optimizer, learning_rate: Number(rate) }, dataset_id: dataset,
    feeds, epochs: Number(epochs), shuffle, init: { seed: Number(seed) }, priority: Number(priority), name: name.trim(),
    ...(batch ? { batch_size: Number(batch) } : {}), ...(fraction ? { validation: { fraction: Number(fraction) } } : {}),
    ...(patience ? { early_stop: { patience: Number(patience) } } : {}), ...(keep ? { save_every: { steps: Number(keep) } } : {}),
  };
}
