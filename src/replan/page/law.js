export const readLaw = (text) => {
  throw new Error("not yet");
};
export const readPilots = (text) => {
  throw new Error("not yet");
};
